// What a script adds to pages that work without one: copying, relative times, charts, and telling when a page is old.
"use strict";
(() => {
  const all = (selector, root = document) => root.querySelectorAll(selector);

  function ago(then) {
    const seconds = Math.trunc((Date.now() - then) / 1000);
    const size = Math.abs(seconds);
    if (size < 1) return "just now";
    let text = `${size} s`;
    for (const [unit, length] of [["y", 31557600], ["d", 86400], ["h", 3600], ["min", 60]]) {
      const count = Math.round(size / length);
      if (count >= 2) { text = `${count} ${unit}`; break; }
    }
    return seconds >= 0 ? `${text} ago` : `in ${text}`;
  }

  function tick() {
    for (const time of all("time[data-relative]")) {
      const then = Date.parse(time.dateTime);
      if (!Number.isNaN(then)) time.textContent = ago(then);
    }
  }

  function draw(root) {
    if (typeof uPlot === "undefined") return;
    for (const place of all("[data-chart]", root)) {
      // What is folded has no width yet; it is drawn when it is opened.
      if (place.firstChild || !place.clientWidth) continue;
      const { series, data, kind } = JSON.parse(place.dataset.chart);
      const style = getComputedStyle(document.documentElement);
      const colours = ["--waits-fill", "--link", "--text-3", "--stale-fill", "--unknown-fill", "--text"];
      // What a word means elsewhere it means here: a failure is never drawn in the colour of what is good.
      const known = {
        verified: "--good-fill", trusted: "--good-fill", attested: "--good-fill", passed: "--good-fill", delivered: "--good-fill",
        failed: "--bad-fill", denied: "--bad-fill", attest_failed: "--bad-fill", dead: "--bad-fill", revoked: "--bad-fill",
        stale: "--stale-fill", unknown: "--unknown-fill", indeterminate: "--unknown-fill",
      };
      const colour = (label, i) => style.getPropertyValue(known[label.toLowerCase()] || colours[i % colours.length]);
      const axis = { stroke: style.getPropertyValue("--text-2"), grid: { stroke: style.getPropertyValue("--line"), width: 1 } };
      const day = "\n{YYYY}-{MM}-{DD}";
      const across = kind !== "time" ? axis : { ...axis, space: 90, values: [
        [31536000, "{YYYY}", null, null, null, null, null, null, 1],
        [86400, "{MM}-{DD}", "\n{YYYY}", null, null, null, null, null, 1],
        [60, "{HH}:{mm}", day, null, day, null, null, null, 1],
        [1, "{HH}:{mm}:{ss}", day, null, day, null, null, null, 1],
        [0.001, "{HH}:{mm}:{ss}.{fff}", day, null, day, null, null, null, 1],
      ] };
      new uPlot({
        width: Math.max(280, place.clientWidth), height: 240, padding: [null, 32, null, null],
        scales: { x: { time: kind === "time" } },
        axes: [across, axis],
        series: [
          kind === "time" ? { label: "Time", value: "{YYYY}-{MM}-{DD} {HH}:{mm}:{ss}" } : {},
          ...series.map((label, i) => ({ label, stroke: colour(label, i), width: 2 })),
        ],
      }, data, place);
    }
  }

  function enhance(root) {
    for (const button of all(".copy[hidden]", root)) button.hidden = !navigator.clipboard;
    for (const button of all("[data-hidden-by-script]", root)) button.hidden = true;
    draw(root);
  }

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    await navigator.clipboard.writeText(button.dataset.copy);
    button.classList.add("done");
    setTimeout(() => button.classList.remove("done"), 1500);
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-submits]")) event.target.form.requestSubmit();
  });

  // Nobody looks: nothing is asked for. Somebody fills something in: it is not taken from under their hands.
  document.addEventListener("htmx:beforeRequest", (event) => {
    const live = event.target.closest("[data-live]");
    if (live && (document.hidden || live.contains(document.activeElement) && document.activeElement.matches("input, select, textarea"))) {
      event.preventDefault();
    }
  });
  // What somebody opened stays open, and what a script shows stays there, also with the focus in it.
  if (typeof Idiomorph !== "undefined") {
    Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) =>
      !(name === "open" && node.matches("details") || name === "hidden" && node.matches(".copy"));
  }
  // What could not be asked for is old, and says so.
  const old = (event) => {
    const live = event.target.closest("[data-live]");
    if (!live || live.querySelector(".banner.is-old")) return;
    const note = document.createElement("div");
    note.className = "banner stale is-old";
    note.setAttribute("role", "status");
    const asOf = (live.dataset.asOf || "").slice(0, 19).replace("T", " ");
    note.textContent = asOf
      ? `What stands here is old: it is of ${asOf} UTC, and could not be asked for again since.`
      : "Not known now: it could not be asked for.";
    for (const loading of all(".later .loading", live)) loading.remove();
    live.prepend(note);
  };
  document.addEventListener("htmx:responseError", old);
  document.addEventListener("htmx:sendError", old);
  document.addEventListener("htmx:timeout", old);
  document.addEventListener("htmx:afterSettle", (event) => enhance(event.target.parentElement || document));

  // Where one is can be seen, also where the navigation is wider than a telephone.
  const showWhereOneIs = () => {
    for (const here of all(".side [aria-current], .tabs [aria-current]")) {
      const row = here.closest("ul");
      row.scrollLeft = here.offsetLeft - row.offsetLeft - 16;
    }
  };
  showWhereOneIs();
  addEventListener("resize", showWhereOneIs);

  enhance(document);
  // The script that draws is loaded by the pages that have charts, after this one.
  document.addEventListener("DOMContentLoaded", () => draw(document));
  document.addEventListener("toggle", (event) => draw(event.target), true);
  tick();
  setInterval(tick, 15000);
})();
