{{- define "attestation.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end }}
{{- end }}

{{- define "attestation.release" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* The pods of the service, and not those of the migration. */}}
{{- define "attestation.selector" -}}
{{ include "attestation.release" . }}
app.kubernetes.io/component: service
{{- end }}

{{- define "attestation.labels" -}}
{{ include "attestation.release" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "attestation.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* "true" on SQLite, else empty. */}}
{{- define "attestation.sqlite" -}}
{{- if hasPrefix "sqlite" .Values.settings.db_url }}true{{ end }}
{{- end }}

{{/* "true" where a second pod may run beside the first; else empty. */}}
{{- define "attestation.several" -}}
{{- if or .Values.autoscaling.enabled (gt (int .Values.replicaCount) 1) }}true{{ end }}
{{- end }}

{{/* "true" where a new pod may start before the old one ended: nothing is on a volume of one node. */}}
{{- define "attestation.rolling" -}}
{{- $keys := .Values.persistence.keys }}
{{- $bundles := .Values.persistence.bundles }}
{{- if and (not (include "attestation.sqlite" .)) (or $keys.existingClaim (eq $keys.accessMode "ReadWriteMany")) (or (not $bundles.enabled) $bundles.existingClaim (eq $bundles.accessMode "ReadWriteMany")) }}true{{ end }}
{{- end }}

{{/* What cannot work is refused here, before anything is changed. */}}
{{- define "attestation.demands" -}}
{{- if not .Values.settings.service_url }}{{ fail "settings.service_url: say under which address machines and operators reach the service" }}{{ end }}
{{- if include "attestation.several" . }}
{{- if include "attestation.sqlite" . }}{{ fail "more than one replica needs PostgreSQL: set settings.db_url to postgresql+psycopg://…" }}{{ end }}
{{- if not (include "attestation.rolling" .) }}{{ fail "more than one replica needs keys that all of them can write, and bundles where they are on a volume: persistence.keys.accessMode=ReadWriteMany, or persistence.keys.existingClaim; persistence.bundles likewise" }}{{ end }}
{{- end }}
{{- $bucket := hasPrefix "s3:" .Values.settings.runs_archive }}
{{- if and .Values.persistence.bundles.enabled .Values.settings.runs_archive }}{{ fail "sealed bundles are on a volume (persistence.bundles), or where settings.runs_archive says" }}{{ end }}
{{- if and (or .Values.secrets.archiveCredentials .Values.secrets.archiveCA) (not $bucket) }}{{ fail "secrets.archiveCredentials and secrets.archiveCA are for a bucket: settings.runs_archive=s3://…" }}{{ end }}
{{- if and .Values.ingress.enabled .Values.secrets.tls }}{{ fail "the Ingress ends TLS, or the service does: secrets.tls is for the latter" }}{{ end }}
{{- end }}

{{/* Which Secret tells which setting which file; a folder has no file. */}}
{{- define "attestation.files" -}}
adminToken: {admin_token_file: token}
caPassphrase: {enrollment_ca_passphrase_file: passphrase}
proxySecret: {proxy_secret_file: secret}
dbPassword: {db_password_file: password}
tls: {tls_cert_file: tls.crt, tls_key_file: tls.key}
operatorCA: {operator_ca: ca.crt}
operatorCRL: {operator_crl: ca.crl}
oidcCA: {oidc_ca_file: ca.crt}
dbCA: {}
timestampCA: {audit_timestamp_ca: ca.crt}
firmwareBlocklist: {firmware_blocklist_file: advisories.json}
tpmCABundle: {tpm_ca_bundle_dir: ""}
tpmCRLs: {tpm_crl_dir: ""}
archiveCredentials: {}
archiveCA: {}
{{- end }}

{{/* The environment: settings, extensions' settings, and where Secrets are mounted. Takes root and secrets. */}}
{{- define "attestation.environment" -}}
{{- range $name, $value := .settings }}
{{- $said := "" }}
{{- if kindIs "slice" $value }}{{ $said = join "," $value }}
{{- else if and (kindIs "float64" $value) (eq (floor $value) $value) }}{{ $said = toString (int64 $value) }}
{{- else }}{{ $said = toString $value }}{{ end }}
{{- if ne $said "" }}
- name: ITL_{{ upper $name }}
  value: {{ $said | quote }}
{{- end }}
{{- end }}
{{- range $secret, $files := include "attestation.files" . | fromYaml }}
{{- if index $.secrets $secret }}
{{- range $setting, $file := $files }}
- name: ITL_{{ upper $setting }}
  value: /etc/itl-attestation/{{ $secret }}{{ if $file }}/{{ $file }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- /* Settings of the client for S3, which has names of its own. */}}
{{- range $secret, $told := dict "archiveCredentials" (list "AWS_SHARED_CREDENTIALS_FILE" "credentials") "archiveCA" (list "AWS_CA_BUNDLE" "ca.crt") }}
{{- if index $.secrets $secret }}
- name: {{ index $told 0 }}
  value: /etc/itl-attestation/{{ $secret }}/{{ index $told 1 }}
{{- end }}
{{- end }}
{{- range $name, $value := .root.Values.extensionSettings }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{- define "attestation.mounts" -}}
{{- range $secret, $name := .secrets }}
{{- if and $name (ne $secret "configs") }}
- name: secret-{{ lower $secret }}
  mountPath: /etc/itl-attestation/{{ $secret }}
  readOnly: true
{{- end }}
{{- end }}
- name: tmp
  mountPath: /tmp
{{- end }}

{{- define "attestation.volumes" -}}
{{- range $secret, $name := .secrets }}
{{- if and $name (ne $secret "configs") }}
- name: secret-{{ lower $secret }}
  secret:
    secretName: {{ $name }}
    defaultMode: 0440
{{- end }}
{{- end }}
- name: tmp
  emptyDir:
    medium: Memory
    sizeLimit: 64Mi
{{- end }}

{{- define "attestation.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
# Otherwise each start would open the key files to the group, and the service refuses such files.
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "attestation.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
