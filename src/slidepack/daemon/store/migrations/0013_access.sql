-- Where a browser session came from and when it was last used; tokens of scripts with what they may do.
ALTER TABLE sessions ADD COLUMN seen_at REAL NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN browser TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN address TEXT NOT NULL DEFAULT '';

-- An id is never used again: who removes token 3 means that one.
CREATE TABLE api_tokens (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    token_hash TEXT NOT NULL UNIQUE,
    scopes TEXT NOT NULL,
    created_at REAL NOT NULL,
    expires_at REAL,
    used_at REAL
);
