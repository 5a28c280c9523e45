#!/usr/bin/env bash
# Builds kube-apiserver and kube-controller-manager from Debian's source package, once, for tests and demos.
# Only bookworm's package has them. They are static, so one build serves every release: elsewhere it is made in a
# bookworm of its own. Where no package index is set up for sources, the indexes of the machine are asked for them.
set -euo pipefail

VERSION='1.20.5+really1.20.2-1.1+deb12u1'
DSC=19fa1da5aefcef673894ac9511986bd98a14410cf8eea0b626613c30df435257 # SHA-256; what is built from it is kept under it
PROGRAMS=(kube-apiserver kube-controller-manager)
NEEDED=(ca-certificates dpkg-dev golang-github-modern-go-reflect2-dev golang-go jq make rsync)
NOT_HERE=3

usage() {
  cat <<'TEXT'
usage: tools/kubernetes.sh where|check|build

  where   print the folder where the programs are kept
  check   succeed where they are there, and what was built
  build   build them where they are not: about ten minutes on two cores, 2.5 GB meanwhile, 215 MB in the end.
          Ends with 3 where that cannot be done here, and says why
TEXT
}

base=${XDG_CACHE_HOME:-$HOME/.cache}/itl-attestation/kubernetes
kept=$base/$DSC

exec 3>&2 # what is said reaches the caller, what compilers print does not
say() { printf '· %s\n' "$*" >&3; }
cannot() {
  say "Kubernetes cannot be built here: $*"
  exit "$NOT_HERE"
}

built() { [ -e "$kept/SHA256SUMS" ] && (cd "$kept" && sha256sum --check --quiet --strict SHA256SUMS) 2>/dev/null; }

suite() { (. /etc/os-release 2>/dev/null && printf '%s' "${VERSION_CODENAME-}"); }

# The recipe, in a bookworm that has what is NEEDED. W and OUT are absolute.
compile() {
  local W=$1 OUT=$2 old new A
  mkdir -p "$W"/{lists/partial,cache,home} "$OUT"
  cd "$W"
  if [ -e /etc/apt/sources.list.d/debian.sources ]; then
    sed 's/^Types: .*/Types: deb-src/' /etc/apt/sources.list.d/debian.sources >sources.sources
  else
    sed -n 's/^deb /deb-src /p' /etc/apt/sources.list >sources.list
  fi
  A=(-q -o "Dir::Etc::sourcelist=$(echo "$W"/sources.*)" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$W/lists"
    -o Dir::Cache="$W/cache" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=root)
  apt-get "${A[@]}" update
  apt-get "${A[@]}" source --download-only "kubernetes=$VERSION"
  # What the index says of the package is not believed: this is.
  echo "$DSC  kubernetes_$VERSION.dsc" | sha256sum --check -
  dpkg-source -x "kubernetes_$VERSION.dsc" src
  # With reflect2 1.0.1 and Go 1.18 or newer the server dies on the first custom resource.
  old=src/vendor/github.com/modern-go/reflect2 new=/usr/share/gocode/src/github.com/modern-go/reflect2
  rm -f $old/*.go $old/*.s
  cp $new/*.go $new/*.s $old/
  cd src
  mkdir -p .go/src/k8s.io
  ln -s ../../.. .go/src/k8s.io/kubernetes
  GOPATH=$PWD/.go HOME=$W/home CGO_ENABLED=0 GOFLAGS='' GOPROXY=off \
    nice make WHAT="${PROGRAMS[*]/#/cmd/}"
  cp "${PROGRAMS[@]/#/_output/local/bin/linux/$(go env GOARCH)/}" "$OUT"/
}

# Have the recipe run here, where this is bookworm.
compile_here() {
  local package missing=()
  for package in "${NEEDED[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  if [ ${#missing[@]} -gt 0 ]; then
    local become=
    [ "$(id -u)" = 0 ] || { sudo -n true 2>/dev/null && become='sudo -n'; } ||
      cannot "building needs root or sudo, or: sudo apt-get install --no-install-recommends ${missing[*]}"
    say "apt-get install ${missing[*]}"
    $become apt-get -qq -o DPkg::Lock::Timeout=120 update </dev/null
    $become env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends \
      -o DPkg::Lock::Timeout=120 install "${missing[@]}" </dev/null
  fi
  compile "$1/work" "$1/out"
}

# Have it run in a bookworm made for it, where this is another release.
compile_there() {
  local there=$1/bookworm file
  [ "$(id -u)" = 0 ] || cannot "only Debian 12 has this source package, and a Debian 12 of its own needs root"
  command -v mmdebstrap >/dev/null || cannot "only Debian 12 has this source package: apt-get install mmdebstrap"
  say "making a bookworm"
  mmdebstrap --quiet --variant=minbase --include="$(IFS=,; printf '%s' "${NEEDED[*]}")" bookworm "$there"
  # How this machine reaches package indexes belongs to its network.
  for file in /etc/resolv.conf /etc/ssl/certs/ca-certificates.crt /etc/apt/apt.conf; do
    [ ! -e "$file" ] || cp -L "$file" "$there$file"
  done
  cp "$0" "$there/kubernetes.sh"
  # shellcheck disable=SC2016 # expanded by the shell inside
  unshare --mount --pid --fork --kill-child --propagation private bash -euc '
    mount -t proc proc "$1/proc"
    mount -t tmpfs -o mode=755 tmpfs "$1/dev"
    for node in null:3 zero:5 random:8 urandom:9; do mknod -m 666 "$1/dev/${node%:*}" c 1 "${node#*:}"; done
    ln -s /proc/self/fd "$1/dev/fd"
    exec chroot "$1" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
      bash /kubernetes.sh compile /work /out
  ' there "$there" </dev/null
  mv "$there/out" "$1/out"
}

build() {
  local work status=0
  mkdir -p "$base"
  exec 9>"$base/lock"
  flock 9 # the second of two has nothing to do
  if built; then return 0; fi
  command -v apt-get >/dev/null || cannot "this is no Debian: there is no apt-get"
  work=$(mktemp -d "$base/build.XXXXXX")
  # shellcheck disable=SC2064 # as it is now
  trap "rm -rf --one-file-system '$work'" EXIT
  trap 'exit 130' INT TERM
  say "building ${PROGRAMS[*]} $VERSION, once; about ten minutes: $base/build.log"
  # In a subshell that ends at the first failure, which `if` or `||` would not let it.
  set +e
  (
    set -e
    if [ "$(suite)" = bookworm ]; then compile_here "$work"; else compile_there "$work"; fi
  ) >"$base/build.log" 2>&1
  status=$?
  set -e
  case $status in
    0) ;;
    "$NOT_HERE") exit "$NOT_HERE" ;;
    *) tail -n 30 "$base/build.log" >&2 && exit 1 ;;
  esac
  (cd "$work/out" && sha256sum "${PROGRAMS[@]}" >SHA256SUMS)
  rm -rf "$kept"
  mv "$work/out" "$kept"
  say "built: $kept"
}

case ${1-} in
  where) printf '%s\n' "$kept" ;;
  check) built ;;
  build) build ;;
  compile) compile "$2" "$3" ;; # inside
  *) usage >&2 && exit 2 ;;
esac
