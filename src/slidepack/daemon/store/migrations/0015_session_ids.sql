-- An id is never used again, as with tokens: who ends session 3 of a list that is old means that one.
CREATE TABLE sessions_with_ids (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    token_hash TEXT NOT NULL UNIQUE,
    created_at REAL NOT NULL,
    seen_at REAL NOT NULL DEFAULT 0,
    browser TEXT NOT NULL DEFAULT '',
    address TEXT NOT NULL DEFAULT ''
);
INSERT INTO sessions_with_ids (id, token_hash, created_at, seen_at, browser, address)
SELECT rowid, token_hash, created_at, seen_at, browser, address FROM sessions ORDER BY rowid;
DROP TABLE sessions;
ALTER TABLE sessions_with_ids RENAME TO sessions;
