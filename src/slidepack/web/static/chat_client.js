// The chat's requests: sessions as JSON, answers as a stream of server-sent events.

const headers = {
  "content-type": "application/json",
  "x-csrf-token": document.body.dataset.csrf,
};

const LOST = {
  code: "DAEMON-NOT-RUNNING",
  what: "The daemon does not answer.",
  why: "",
  fix: "Start it with `slidepack serve`, then ask again.",
};

// An error of the API, as data.
export class Refusal extends Error {
  constructor(report) {
    super(report.what);
    this.report = report;
  }
}

const request = async (method, path, body) => {
  let answer;
  try {
    answer = await fetch(`/api/v1/chat/sessions${path}`, { method, headers, body: body && JSON.stringify(body) });
  } catch {
    throw new Refusal(LOST);
  }
  if (answer.ok) return answer;
  throw new Refusal(await answer.json());
};

export const open = async (wanted) => (await request("POST", "", wanted)).json();
export const show = async (session) => (await request("GET", `/${session}`)).json();
export const end = (session) => request("DELETE", `/${session}`);
export const stop = (session, ask) => request("DELETE", `/${session}/asks/${ask}`);

const parse = (block) => {
  const fields = { event: "", data: "" };
  for (const line of block.split(/\r?\n/)) {
    const at = line.indexOf(": ");
    if (at > 0) fields[line.slice(0, at)] = line.slice(at + 2);
  }
  return fields;
};

// Calls `on[name](data)` for each event of the answers, until the last.
export const ask = async (session, body, on) => {
  const answer = await request("POST", `/${session}/asks`, body);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read().catch(() => Promise.reject(new Refusal(LOST)));
    if (done) return;
    const blocks = (text + value).split(/\r?\n\r?\n/);
    text = blocks.pop();
    for (const { event, data } of blocks.map(parse)) {
      if (event && on[event]) on[event](JSON.parse(data));
    }
  }
};
