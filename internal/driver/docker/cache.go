// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"sync"
	"time"
)

// cacheAge limits how long a container goes without being inspected, because an
// engine drops events for a reader that is too slow.
const cacheAge = 5 * time.Minute

// cache holds records while an event stream is open that would report a change.
// It only saves inspections and is never the source of truth: without a stream it
// is empty.
type cache struct {
	mu      sync.Mutex
	streams int
	era     uint64 // grows when the looks under way must be ignored
	entries map[string]entry
}

type entry struct {
	record  record
	at      time.Time
	valid   bool
	version uint64 // grows with every event
}

// look is taken before a container is inspected, to detect afterwards whether an
// event arrived in between.
type look struct {
	era, version uint64
}

func (c *cache) look(id string) look {
	c.mu.Lock()
	defer c.mu.Unlock()
	return look{c.era, c.entries[id].version}
}

// put stores r, unless the look that preceded it may be outdated.
func (c *cache) put(l look, r record, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams > 0 && l == (look{c.era, c.entries[r.id].version}) {
		c.entries[r.id] = entry{record: r, at: now, valid: true, version: l.version}
	}
}

// get returns the last record of a container, and whether it can be trusted.
func (c *cache) get(id string, now time.Time) (r record, fresh bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[id]
	return e.record, e.valid && now.Sub(e.at) < cacheAge
}

// changed is called for every event.
func (c *cache) changed(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams > 0 {
		e := c.entries[id]
		e.valid = false
		e.version++
		c.entries[id] = e
	}
}

func (c *cache) opened() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams++; c.streams == 1 {
		c.era++
		c.entries = map[string]entry{}
	}
}

func (c *cache) closed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams--; c.streams == 0 {
		c.era++
		c.entries = nil
	}
}

// prune removes versions too, so earlier looks cannot be judged any more: era grows.
func (c *cache) prune(there map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := len(c.entries)
	if prune(c.entries, there); len(c.entries) < before {
		c.era++
	}
}
