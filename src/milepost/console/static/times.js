// Keeps "3 s ago" true. The exact time is in the title.
const STEPS = [[86400, "d", 3600, "h"], [3600, "h", 60, "m"], [60, "m", 1, "s"]];

function duration(seconds) {
  for (const [size, unit, smaller, name] of STEPS) {
    if (seconds >= size) {
      const rest = Math.floor((seconds % size) / smaller);
      return `${Math.floor(seconds / size)} ${unit}${rest ? ` ${rest} ${name}` : ""}`;
    }
  }
  return `${Math.max(0, seconds)} s`;
}

export function tellTimes(within = document) {
  for (const time of within.querySelectorAll("time[datetime]")) {
    const seconds = Math.round((Date.now() - Date.parse(time.dateTime)) / 1000);
    const words = seconds < -1 ? `in ${duration(-seconds)}` : `${duration(seconds)} ago`;
    if (time.textContent !== words) time.textContent = words;
  }
}

export function beginTimes() {
  setInterval(() => document.hidden || tellTimes(), 1000);
}
