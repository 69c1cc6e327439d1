"use strict";
// Fills, sorts and filters the table. What came with the data enters the page as text, never as markup.
(() => {
  const { columns, rows, by } = JSON.parse(document.getElementById("data").textContent);
  const table = document.getElementById("rows");
  const heads = [...table.querySelectorAll("th")];
  const filter = document.getElementById("filter");
  const more = document.getElementById("more");
  const first = 100; // rows shown until the reader asks for all
  let all = false, sorted = by, up = true;

  const whole = text => BigInt(text.replace("#", "")); // an id may be larger than a number can be
  const sign = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  const collator = new Intl.Collator(undefined, { numeric: true });
  const compare = { text: collator.compare, id: (a, b) => sign(whole(a), whole(b)), score: sign, count: sign };

  function show(value, kind) {
    if (value === null) return "\u2013";
    if (kind === "count") return Number.isInteger(value) ? String(value) : value.toFixed(2);
    return kind === "score" ? value.toFixed(4) : value;
  }

  function wanted(text) {
    const [, name, relation, limit] = /^\s*(\S.*?)\s*(<=|>=|<|>|=)\s*(-?\d*\.?\d+)\s*$/.exec(text) ?? [];
    const isNumber = c => c.kind === "score" || c.kind === "count";
    const at = columns.findIndex(c => isNumber(c) && [c.key, c.label].some(n => n.toLowerCase() === name?.toLowerCase()));
    if (at >= 0) {
      const holds = { "<": s => s < 0, "<=": s => s <= 0, ">": s => s > 0, ">=": s => s >= 0, "=": s => s === 0 }[relation];
      return row => row[at] !== null && holds(sign(row[at], Number(limit)));
    }
    const part = text.trim().toLowerCase();
    return row => columns.some((c, i) => !isNumber(c) && row[i].toLowerCase().includes(part));
  }

  function line(row) {
    const tr = document.createElement("tr");
    columns.forEach(({ kind }, i) => {
      const td = tr.insertCell();
      td.className = kind;
      td.textContent = show(row[i], kind);
      if (typeof row[i] === "number") td.title = row[i];
      if (kind === "score") td.style.setProperty("--share", Math.min(row[i] ?? 0, 1));
    });
    return tr;
  }

  function draw() {
    const { kind } = columns[sorted];
    const found = rows.filter(wanted(filter.value));
    found.sort((a, b) => { // undefined ones last, whichever way
      const [x, y] = [a[sorted], b[sorted]];
      return x === null || y === null ? (x === null) - (y === null) : (up ? 1 : -1) * compare[kind](x, y);
    });
    const shown = all ? found : found.slice(0, first);
    table.tBodies[0].replaceChildren(...shown.map(line));
    heads.forEach((th, i) => {
      if (i === sorted) th.setAttribute("aria-sort", up ? "ascending" : "descending");
      else th.removeAttribute("aria-sort");
    });
    document.getElementById("status").textContent = `${shown.length} of ${found.length} rows shown.`;
    more.hidden = shown.length === found.length;
  }

  heads.forEach((th, i) => th.firstChild.addEventListener("click", () => {
    up = i === sorted ? !up : true;
    sorted = i;
    draw();
  }));
  filter.addEventListener("input", draw);
  more.addEventListener("click", () => { all = true; draw(); });
  for (const td of document.querySelectorAll("td.score data")) { // the tables that came as they are
    td.parentNode.style.setProperty("--share", Math.min(Number(td.value), 1));
  }
  draw();
})();
