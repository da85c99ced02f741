"use strict";
// Draws the figures that stand as JSON in the page; plotly.js is inlined above.
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const common = {
  autosize: true, margin: { l: 50, r: 12, t: 12, b: 44 }, hovermode: "closest",
  font: { family: "system-ui, sans-serif", size: 12 }, paper_bgcolor: "#fff", plot_bgcolor: "#fff",
  legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
};
const options = { // no button that would send the plot to a server
  responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "",
  displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false,
  modeBarButtons: [["toImage"], ["zoom2d", "pan2d", "resetScale2d"]],
};

function place(parent, figure) {
  const box = document.createElement("div");
  box.className = "figure";
  const title = document.createElement("h3");
  title.textContent = figure.title;
  const plot = document.createElement("div");
  plot.className = "plot";
  const note = document.createElement("p");
  note.className = "note";
  note.innerHTML = figure.note; // escaped where the page was made
  box.append(title, plot, note);
  parent.append(box);
  const layout = { ...common, height: 360, ...figure.layout };
  for (const name of ["xaxis", "yaxis"]) layout[name] = { gridcolor: "#eaeef2", zeroline: false, ...layout[name] };
  return Plotly.newPlot(plot, figure.data, layout, options);
}

async function draw() {
  const overview = document.getElementById("overview");
  for (const figure of read("figures")) await place(overview, figure);
  const details = read("details");
  const choice = document.getElementById("cell");
  const shown = document.getElementById("detail");
  const show = async () => {
    for (const plot of shown.querySelectorAll(".plot")) Plotly.purge(plot);
    shown.replaceChildren();
    for (const figure of details[choice.value]) await place(shown, figure);
  };
  if (choice) {
    choice.addEventListener("change", show);
    await show();
  }
  document.body.dataset.drawn = "yes";
}

function showAll() { // very many rows wait in a template, so that the page opens at once
  const more = document.getElementById("more");
  if (!more) return;
  document.getElementById("cells").tBodies[0].append(more.content);
  document.getElementById("all").parentElement.remove();
  more.remove();
}

function sortable(table) {
  table.tHead.addEventListener("click", (event) => {
    const head = event.target.closest("th");
    if (!head) return;
    if (table.id === "cells") showAll();
    const falling = head.dataset.order === "rising";
    for (const other of table.tHead.querySelectorAll("th")) delete other.dataset.order;
    head.dataset.order = falling ? "falling" : "rising";
    const key = (row) => row.cells[head.cellIndex].dataset.value ?? row.cells[head.cellIndex].textContent;
    const rows = [...table.tBodies[0].rows].map((row) => [key(row), row]);
    rows.sort(([a], [b]) => (a === "" || b === "" ? (a === "") - (b === "") : (falling ? -1 : 1) *
      (isNaN(a) || isNaN(b) ? String(a).localeCompare(b) : a - b)));
    table.tBodies[0].append(...rows.map(([, row]) => row));
  });
}

// Printing must not cut plots off: they take the paper's width first.
const fit = () => document.querySelectorAll(".plot").forEach((plot) => Plotly.Plots.resize(plot));
addEventListener("beforeprint", fit);
addEventListener("afterprint", fit);
document.querySelectorAll("table").forEach(sortable);
document.getElementById("all")?.addEventListener("click", showAll);
draw();
