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
const MOST_ROUNDS = 240;

function stroke(i) {
  return colour(STROKES[i % STROKES.length]);
}

function plotted(place, series, data, bands) {
  place.replaceChildren();
  if (!series.length) return null;
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line") } };
  const options = {
    width: Math.max(260, place.clientWidth), height: 280, series: [{ label: "round" }, ...series],
    bands, scales: { x: { time: false } }, axes: [axis, { ...axis, size: 60 }],
  };
  const plot = new uPlot(options, data, place);
  for (const label of place.querySelectorAll(".u-legend .u-series th")) {
    label.tabIndex = 0; // curves are shown and hidden by keyboard, too
    label.addEventListener("keydown", (event) => { if (event.key === "Enter") label.click(); });
  }
  return plot;
}

function drawRounds(place, rounds) {
  const { names, data } = table(rounds);
  const series = names.map((name, i) => ({
    label: name, stroke: stroke(i), width: 2,
    show: !/^(clients|failures|seconds|secure|bytes_)/.test(name),
  }));
  return plotted(place, series, data, []);
}

// The lowest, the highest and the middle of what clients told, and a thin line of each. Of many
// clients the server tells just these three.
function drawClients(place, told) {
  const clients = [...new Set(told.rounds.flatMap((facts) => Object.keys(facts.loss)))];
  const sorted = told.rounds.map((facts) => Object.values(facts.loss).sort((a, b) => a - b));
  const lines = clients.filter((client) => /^[0-9]+$/.test(client));
  const data = [
    told.rounds.map((facts) => facts.round),
    sorted.map((losses) => losses[0] ?? null),
    sorted.map((losses) => losses[losses.length - 1] ?? null),
    sorted.map((losses) => losses[losses.length >> 1] ?? null),
    ...lines.map((client) => told.rounds.map((facts) => facts.loss[client] ?? null)),
  ];
  const edge = { stroke: colour("--line"), width: 1 };
  const series = [
    { ...edge, label: "lowest" }, { ...edge, label: "highest" },
    { label: "middle", stroke: colour("--text"), width: 2 },
    ...lines.map((client, i) => (
      { label: told.names[client] ?? `client ${client}`, stroke: stroke(i), width: 1, spanGaps: true })),
  ];
  const bands = [{ series: [2, 1], fill: colour("--band") }];
  place.classList.toggle("chart", clients.length > 0);
  return plotted(place, clients.length ? series : [], data, bands);
}

function read(id) {
  const block = document.getElementById(id);
  return block ? JSON.parse(block.textContent) : null;
}

function start() {
  const place = document.getElementById("curves");
  if (!place) return;
  const ofClients = document.getElementById("client-curves");
  const told = read("told");
  let rounds = read("rounds");
  let plot = null;
  const redraw = () => {
    plot = drawRounds(place, rounds);
    if (told) drawClients(ofClients, told);
  };
  redraw();
  addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  if (!place.dataset.source) return;
  const words = document.getElementById("words");
  const source = new EventSource(`${place.dataset.source}?known=${rounds.length}&told=${told.known}`);
  source.addEventListener("job", (event) => {
    const news = JSON.parse(event.data);
    words.textContent = news.words;
    if (news.rounds.length) {
      const before = table(rounds).names.length;
      rounds = rounds.slice(0, news.first).concat(news.rounds);
      const { names, data } = table(rounds);
      if (plot && names.length === before) plot.setData(data); else plot = drawRounds(place, rounds);
    }
    if (news.told.length) {
      told.rounds = told.rounds.concat(news.told);
      if (told.rounds.length > MOST_ROUNDS) told.rounds = told.rounds.filter((_, i) => i % 2 === 0);
      document.getElementById("no-clients").hidden = true;
      document.getElementById("about-clients").hidden = false;
      drawClients(ofClients, told);
    }
    document.getElementById("round-count").textContent = String(rounds.length);
    if (news.ended) { source.close(); location.reload(); }
  });
}

addEventListener("DOMContentLoaded", start);
