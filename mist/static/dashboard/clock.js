/** The server's clock, as its figures tell it: that of the machine that shows the page may be wrong. */

const NOISE = 5; // seconds that an answer may take; the clock is not set anew for less

let ahead = 0; // seconds, of this machine's clock

/** @param {number} time of the server, Unix seconds, as it has just answered. */
export function setServerTime(time) {
  const found = time - Date.now() / 1000;
  if (Math.abs(found - ahead) > NOISE) ahead = found;
}

/** Unix seconds. */
export const serverTime = () => Date.now() / 1000 + ahead;
