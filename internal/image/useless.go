// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// uselessFor is how long content that was of no use is not fetched again, unless the
	// server shows that it has other content now.
	uselessFor = 6 * time.Hour
	// unversionedFor is the same for a server that names no version of its content, so that
	// only a fetch shows whether it has changed.
	unversionedFor = 5 * time.Minute
	// maxUseless is how many sources are remembered.
	maxUseless = 1000
)

// uselessContent is fetched content that was of no use, by the key of the fetch. Without
// it, a server with useless content would send all of it at each attempt.
type uselessContent struct {
	mu    sync.Mutex
	known map[string]uselessEntry
}

type uselessEntry struct {
	version string
	noted   time.Time
	why     error
}

// until returns when the content is fetched again.
func (e uselessEntry) until() time.Time {
	if e.version == "" {
		return e.noted.Add(unversionedFor)
	}
	return e.noted.Add(uselessFor)
}

// note records why content was of no use.
func (u *uselessContent) note(key, version string, now time.Time, why error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	maps.DeleteFunc(u.known, func(_ string, e uselessEntry) bool { return !now.Before(e.until()) })
	if u.known == nil {
		u.known = map[string]uselessEntry{}
	}
	u.known[key] = uselessEntry{version, now, why}
	if len(u.known) > maxUseless {
		delete(u.known, u.oldest())
	}
}

// oldest returns the key that was recorded first.
func (u *uselessContent) oldest() string {
	return slices.MinFunc(slices.Collect(maps.Keys(u.known)), func(a, b string) int { return u.known[a].noted.Compare(u.known[b].noted) })
}

// find returns why the server's present content was of no use, if it may be the same as
// before.
func (u *uselessContent) find(key, version string, now time.Time) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	e, is := u.known[key]
	if !is || !now.Before(e.until()) || version != e.version {
		return nil
	}
	known := "the server has the same as before, and it"
	if version == "" {
		known = "the server does not say whether it has changed: it"
	}
	return fmt.Errorf("%w: %s is not fetched again before %s", e.why, known, e.until().UTC().Format(time.RFC3339))
}
