// Curves and words of a job, kept up to date by server-sent events. No framework, no inline code.
"use strict";

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function table(rounds) {
  const names = [];
  for (const facts of rounds) {
    for (const name of Object.keys(facts)) {
      if (name !== "round" && !names.includes(name)) names.push(name);
    }
  }
  const data = [rounds.map((facts, i) => ("round" in facts ? facts.round : i))];
  for (const name of names) data.push(rounds.map((facts) => facts[name] ?? null));
  return { names, data };
}

const STROKES = ["--accent", "--bad", "--good", "--wait", "--quiet"];

function draw(place, rounds) {
  const { names, data } = table(rounds);
  place.replaceChildren();
  if (!names.length) return null;
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line") } };
  const series = [{ label: "round" }];
  names.forEach((name, i) => {
    const shown = !/^(clients|failures|seconds|bytes_)/.test(name);
    series.push({ label: name, stroke: colour(STROKES[i % STROKES.length]), width: 2, show: shown });
  });
  const options = {
    width: Math.max(260, place.clientWidth), height: 280, series, scales: { x: { time: false } },
    axes: [axis, { ...axis, size: 60 }],
  };
  const plot = new uPlot(options, data, place);
  for (const label of place.querySelectorAll(".u-legend .u-series th")) {
    label.tabIndex = 0; // curves are shown and hidden by keyboard, too
    label.addEventListener("keydown", (event) => { if (event.key === "Enter") label.click(); });
  }
  return plot;
}

function start() {
  const place = document.getElementById("curves");
  if (!place) return;
  let rounds = JSON.parse(document.getElementById("rounds").textContent);
  let plot = draw(place, rounds);
  const redraw = () => { plot = draw(place, rounds); };
  addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  if (!place.dataset.source) return;
  const words = document.getElementById("words");
  const source = new EventSource(`${place.dataset.source}?known=${rounds.length}`);
  source.addEventListener("job", (event) => {
    const news = JSON.parse(event.data);
    words.textContent = news.words;
    if (news.rounds.length) {
      const before = table(rounds).names.length;
      rounds = rounds.slice(0, news.first).concat(news.rounds);
      const { names, data } = table(rounds);
      if (plot && names.length === before) plot.setData(data); else redraw();
    }
    document.getElementById("round-count").textContent = String(rounds.length);
    if (news.ended) { source.close(); location.reload(); }
  });
}

addEventListener("DOMContentLoaded", start);
