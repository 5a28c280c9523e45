// What a script adds to the editor of queries: faults while one types, what fits at the cursor, keys. Without it there
// is the button that checks.
"use strict";
(() => {
  const form = document.querySelector("[data-editor]");
  if (!form) return;
  const area = form.querySelector("textarea");
  const state = document.getElementById("q-state");
  const list = document.getElementById("fits");
  const about = state.textContent;
  let asked = 0, timer = 0, fits = [], chosen = -1;

  area.setAttribute("aria-autocomplete", "list");
  area.setAttribute("aria-controls", "fits");

  // The service counts characters; a browser counts units of UTF-16.
  const characters = (text) => [...text].length;
  const typed = () => /[\w]*$/.exec(area.value.slice(0, area.selectionStart))[0];

  function close() {
    list.hidden = true; fits = []; chosen = -1;
    area.removeAttribute("aria-activedescendant");
  }

  function say(text, wrong) {
    area.parentElement.classList.toggle("wrong", wrong);
    state.className = wrong ? "fault" : "about";
    state.textContent = text;
  }

  function choose(index) {
    chosen = (index + fits.length) % fits.length;
    [...list.children].forEach((item, i) => item.setAttribute("aria-selected", String(i === chosen)));
    const item = list.children[chosen];
    area.setAttribute("aria-activedescendant", item.id);
    item.scrollIntoView({ block: "nearest" });
  }

  function insert(text) {
    const begin = area.selectionStart - typed().length;
    area.setRangeText(text, begin, area.selectionEnd, "end");
    area.focus();
    close();
    later(false);
  }

  function open(found) {
    fits = found;
    list.replaceChildren(...found.map((each, i) => {
      const item = document.createElement("li");
      item.id = `fit-${i}`;
      item.setAttribute("role", "option");
      item.setAttribute("aria-selected", "false");
      const word = document.createElement("code");
      word.textContent = each.text;
      const detail = document.createElement("span");
      detail.textContent = each.detail || each.kind;
      item.append(word, detail);
      item.addEventListener("mousedown", (event) => { event.preventDefault(); insert(each.text); });
      return item;
    }));
    list.hidden = false;
    choose(0);
  }

  async function check(wanted) {
    const mine = ++asked;
    const text = area.value;
    if (!text.trim() && !wanted) { close(); say(about, false); return; }
    // The text begins where its blanks end, as the service gets it.
    const before = text.slice(0, area.selectionStart).trimStart();
    const address = new URLSearchParams({ q: text, offset: String(characters(before)) });
    let found;
    try {
      const answer = await fetch(`/query/check?${address}`, { headers: { Accept: "application/json" } });
      if (!answer.ok || !(answer.headers.get("Content-Type") || "").startsWith("application/json")) throw new Error();
      found = await answer.json();
    } catch {
      // What was said of another text is not left standing.
      if (mine === asked) { close(); say("Not checked: the service does not answer now.", false); }
      return;
    }
    if (mine !== asked) return;
    const bad = !found.valid && found.error;
    say(found.problem ? found.problem
      : bad ? `Line ${found.error.line}, column ${found.error.column}: ${found.error.message}.${found.error.suggestion ? ` Did you mean ${found.error.suggestion}?` : ""}`
      : found.valid ? `Good: it answers with ${found.columns.length} column${found.columns.length === 1 ? "" : "s"}` : about, Boolean(bad));
    const word = typed();
    const some = (found.completions || []).filter((each) => each.text !== word).slice(0, 40);
    if (some.length && document.activeElement === area && (wanted || word.length > 1)) open(some); else close();
  }

  function later(wanted) {
    clearTimeout(timer);
    timer = setTimeout(() => check(wanted), wanted ? 0 : 300);
  }

  area.addEventListener("input", () => later(false));
  area.addEventListener("blur", close);
  area.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === "Enter") { event.preventDefault(); form.requestSubmit(); return; }
    if (event.ctrlKey && event.key === " ") { event.preventDefault(); later(true); return; }
    if (list.hidden) return;
    if (event.key === "ArrowDown") { event.preventDefault(); choose(chosen + 1); }
    else if (event.key === "ArrowUp") { event.preventDefault(); choose(chosen - 1); }
    else if (event.key === "Enter" || event.key === "Tab") { event.preventDefault(); insert(fits[chosen].text); }
    else if (event.key === "Escape") { event.preventDefault(); close(); }
  });

  for (const word of document.querySelectorAll("[data-insert]")) {
    word.setAttribute("role", "button");
    word.tabIndex = 0;
    const put = () => { area.focus(); area.setRangeText(word.dataset.insert, area.selectionStart, area.selectionEnd, "end"); later(false); };
    word.addEventListener("click", put);
    word.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); put(); } });
  }

  for (const button of document.querySelectorAll("[data-copy-address]")) {
    button.hidden = !navigator.clipboard;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(location.href);
      button.classList.add("done");
      setTimeout(() => button.classList.remove("done"), 1500);
    });
  }

  // What is beside the editor on a wide screen is below it on a small one, and closed.
  if (matchMedia("(max-width: 64rem)").matches) {
    for (const part of document.querySelectorAll("details[data-wide]")) part.open = false;
  }
})();
