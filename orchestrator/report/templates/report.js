"use strict";
(() => {
  const NARROW_PIXELS = 620;
  const POLL_MILLISECONDS = 2000;
  const readData = (root) => JSON.parse(root.getElementById("data").textContent);
  let data = readData(document);
  const views = new Map();

  // Charts
  const cssValue = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const isNarrow = () => window.innerWidth < NARROW_PIXELS;

  function theme() {
    const [ink, muted, edge, grid] = ["--ink", "--muted", "--edge", "--grid"].map(cssValue);
    const font = getComputedStyle(document.body).fontFamily;
    const words = { labelColor: muted, titleColor: muted, labelFontSize: 12, titleFontSize: 12, titleFontWeight: 500 };
    return {
      aria: false,
      background: null,
      font,
      view: { stroke: null },
      axis: { ...words, gridColor: grid, domainColor: edge, tickColor: edge, labelOverlap: true },
      legend: { ...words, columns: isNarrow() ? 2 : 0, symbolSize: 90 },
      range: { category: [0, 1, 2, 3, 4, 5].map((index) => cssValue(`--series-${index}`)) },
      rule: { color: cssValue("--kill") },
      point: { color: ink },
    };
  }

  async function draw(element) {
    const name = element.dataset.chart;
    const spec = data.charts[name];
    if (!spec) return;
    views.get(element)?.finalize();
    // The element itself has the chart's words, and the table below its numbers; the hundreds of marks say nothing more.
    const frame = document.createElement("div");
    frame.setAttribute("aria-hidden", "true");
    element.replaceChildren(frame);
    const result = await vegaEmbed(frame, structuredClone(spec), {
      renderer: "svg", actions: false, ast: true, defaultStyle: false, config: theme(),
      tooltip: { disableDefaultStyle: true, offsetX: 12, offsetY: 12 },
    });
    views.set(element, result);
    element.view = result.view;
    element.spec = JSON.stringify(spec);
    element.classList.add("drawn");
  }

  const drawAll = () => Promise.all([...document.querySelectorAll("[data-chart]")].map(draw));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  let narrow = isNarrow();
  window.addEventListener("resize", () => {
    if (narrow !== isNarrow()) {
      narrow = isNarrow();
      drawAll();
    }
  });

  // Rollouts
  function showLogprobs(details) {
    if (details.querySelector("table")) return;
    const turn = data.logprobs[details.dataset.rollout][details.dataset.turn];
    const table = document.createElement("table");
    const add = (row, tag, text, className) => {
      const cell = document.createElement(tag);
      cell.textContent = text;
      if (className) cell.className = className;
      row.append(cell);
      return cell;
    };
    const caption = add(table, "caption", "Logprobs", "hidden");
    caption.id = `${details.id}-caption`;
    const head = table.createTHead().insertRow();
    const named = turn.texts !== null;
    for (const title of ["token", ...(named ? ["text"] : []), "logprob", "probability"]) {
      add(head, "th", title).scope = "col";
    }
    const body = table.createTBody();
    turn.logprobs.forEach((logprob, index) => {
      const row = body.insertRow();
      add(row, "td", index, "number");
      if (named) add(row, "td", JSON.stringify(turn.texts[index]).slice(1, -1));
      add(row, "td", logprob === null ? "no number" : logprob.toFixed(4), "number");
      const cell = add(row, "td", "");
      if (logprob !== null) {
        const meter = document.createElement("meter");
        meter.value = Math.exp(logprob);
        meter.setAttribute("aria-label", `probability of token ${index}`);
        cell.append(meter, ` ${(100 * Math.exp(logprob)).toFixed(1)} %`);
      }
    });
    const frame = document.createElement("div");
    frame.className = "scroll";
    frame.tabIndex = 0;
    frame.setAttribute("role", "group");
    frame.setAttribute("aria-labelledby", caption.id);
    frame.append(table);
    details.append(frame);
  }
  document.addEventListener("toggle", (event) => {
    if (event.target.classList.contains("logprobs") && event.target.open) showLogprobs(event.target);
  }, true);

  function filter() {
    const form = document.getElementById("filters");
    if (!form) return;
    const why = document.getElementById("filter-why").value;
    let listed = 0;
    for (const rollout of document.querySelectorAll(".rollout")) {
      rollout.hidden = Boolean(why) && rollout.dataset.why !== why;
      listed += rollout.hidden ? 0 : 1;
    }
    for (const group of document.querySelectorAll(".group")) {
      group.hidden = !group.querySelector(".rollout:not([hidden])");
    }
    document.getElementById("filter-count").textContent = `${listed} listed`;
  }
  document.addEventListener("change", filter);

  // Following a run: what changed is replaced, and the reader stays where they are.
  const parts = new Map([...document.querySelectorAll("[data-part]")].map((part) => [part.id, part.innerHTML]));

  function place() {
    const focused = document.activeElement;
    const anchor = [...document.querySelectorAll("main [id]")].find((each) => each.getBoundingClientRect().bottom > 60);
    return {
      open: new Set([...document.querySelectorAll("details[open]")].map((each) => each.id)),
      focus: focused.tagName === "SUMMARY" ? [focused.parentElement.id, "summary"] : [focused.id, null],
      anchor: anchor && [anchor.id, anchor.getBoundingClientRect().top],
      scrolls: [...document.querySelectorAll(".scroll[id]")].map((each) => [each.id, each.scrollTop, each.scrollLeft]),
    };
  }

  function restore(was, replaced) {
    for (const details of document.querySelectorAll("details[id]")) {
      if (was.open.has(details.id)) details.open = true;
      if (details.open && details.classList.contains("logprobs")) showLogprobs(details);
    }
    for (const [id, top, left] of was.scrolls) document.getElementById(id)?.scrollTo(left, top);
    const [id, inner] = was.focus;
    const holder = id && document.getElementById(id);
    if (holder && replaced.some((part) => part.contains(holder))) {
      (inner ? holder.querySelector(inner) : holder).focus({ preventScroll: true });
    }
    const anchor = was.anchor && document.getElementById(was.anchor[0]);
    if (anchor) window.scrollBy({ top: anchor.getBoundingClientRect().top - was.anchor[1], behavior: "instant" });
  }

  function renew(html) {
    const next = new DOMParser().parseFromString(html, "text/html");
    const was = place();
    data = readData(next);
    document.title = next.title;
    const replaced = [];
    const charts = new Map([...document.querySelectorAll("[data-chart]")].map((each) => [each.dataset.chart, each]));
    for (const part of next.querySelectorAll("[data-part]")) {
      const old = document.getElementById(part.id);
      if (!old || parts.get(part.id) === part.innerHTML) continue;
      parts.set(part.id, part.innerHTML);
      old.replaceChildren(...part.childNodes);
      replaced.push(old);
    }
    for (const fresh of document.querySelectorAll("[data-chart]")) {
      const drawn = charts.get(fresh.dataset.chart);
      if (drawn && drawn !== fresh && drawn.spec) {
        drawn.setAttribute("aria-label", fresh.getAttribute("aria-label"));
        fresh.replaceWith(drawn);
      }
    }
    const form = document.getElementById("filters");
    const nextForm = next.getElementById("filters");
    if (!form && nextForm) document.getElementById("rollout-list").before(nextForm);
    if (form && nextForm) {
      const select = document.getElementById("filter-why");
      const chosen = select.value;
      select.replaceChildren(...next.getElementById("filter-why").childNodes);
      select.value = chosen;
      if (select.selectedIndex < 0) select.selectedIndex = 0;
    }
    restore(was, replaced);
    filter();
    for (const element of document.querySelectorAll("[data-chart]")) {
      if (element.spec !== JSON.stringify(data.charts[element.dataset.chart])) draw(element);
    }
  }

  async function follow() {
    const word = document.getElementById("live-word");
    let tag = null;
    for (;;) {
      try {
        const reply = await fetch(location.href.split("#")[0], { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
        if (reply.status === 200) {
          tag = reply.headers.get("ETag");
          renew(await reply.text());
        }
        const told = reply.ok || reply.status === 304 ? "Live: this page follows the run." : `The run cannot be read: ${await reply.text()}`;
        if (word.textContent !== told) word.textContent = told;
      } catch {
        word.textContent = "No longer live: report --follow has ended. What is shown stays.";
        return;
      }
      await new Promise((resume) => setTimeout(resume, POLL_MILLISECONDS));
    }
  }

  window.drawn = drawAll();
  if ("live" in document.body.dataset) window.drawn.then(follow);
})();
