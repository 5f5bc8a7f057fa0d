-- One worker that trains many jobs over one base. Its process is that of its attempts: all of them
-- carry its nonce.
CREATE TABLE packs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    device TEXT NOT NULL,
    model TEXT NOT NULL,
    folder TEXT NOT NULL,
    nonce TEXT NOT NULL UNIQUE,
    machine TEXT NOT NULL,
    alone INTEGER NOT NULL,
    state TEXT NOT NULL DEFAULT 'live' CHECK (state IN ('live', 'ended')),
    events_offset INTEGER NOT NULL DEFAULT 0,
    ready INTEGER NOT NULL DEFAULT 0,
    error TEXT,
    started_at REAL NOT NULL,
    ended_at REAL
);
CREATE INDEX packs_live ON packs (id) WHERE state = 'live';

ALTER TABLE attempts ADD COLUMN pack_id INTEGER REFERENCES packs (id);
ALTER TABLE attempts ADD COLUMN device TEXT NOT NULL DEFAULT '';
CREATE INDEX attempts_pack ON attempts (pack_id) WHERE pack_id IS NOT NULL;
