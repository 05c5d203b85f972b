// Hides decisions whose text does not contain what was typed.
const filter = document.getElementById("filter");
if (filter) {
  const rows = [...document.querySelectorAll("#decisions tbody tr")];
  filter.addEventListener("input", () => {
    const wanted = filter.value.toLowerCase();
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });
}
