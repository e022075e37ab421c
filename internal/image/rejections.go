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
	// versionedRetry is how long content that was unusable is not fetched again, unless the
	// server shows that it has other content now.
	versionedRetry = 6 * time.Hour
	// unversionedRetry is the same for a server that names no version of its content, so
	// that only a fetch shows whether it has changed.
	unversionedRetry = 5 * time.Minute
	// maxRejections is how many sources are remembered.
	maxRejections = 1000
)

// rejections remembers content that was fetched and turned out to be unusable, or did not fit on
// the disk, by the key of the reference. Without it, a server would send all of it at each
// attempt.
type rejections struct {
	mu    sync.Mutex
	known map[string]rejection
}

type rejection struct {
	version string
	at      time.Time
	err     error
	needs   int64 // free bytes from which on it is fetched again; 0 if room was not the cause
}

// retryAt returns when the content is fetched again.
func (r rejection) retryAt() time.Time {
	if r.version == "" {
		return r.at.Add(unversionedRetry)
	}
	return r.at.Add(versionedRetry)
}

// remember records why content that was fetched could not be used.
func (r *rejections) remember(key string, rejected rejection) {
	now := rejected.at
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.known, func(_ string, old rejection) bool { return !now.Before(old.retryAt()) })
	if r.known == nil {
		r.known = map[string]rejection{}
	}
	r.known[key] = rejected
	if len(r.known) > maxRejections {
		delete(r.known, r.oldestKey())
	}
}

func (r *rejections) oldestKey() string {
	return slices.MinFunc(slices.Collect(maps.Keys(r.known)), func(a, b string) int { return r.known[a].at.Compare(r.known[b].at) })
}

// findRejection returns why the server's present content could not be used, if it may be the same as
// before. free is how many bytes the disk has free now.
func (r *rejections) findRejection(key, version string, free int64, now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	found, ok := r.known[key]
	if !ok || !now.Before(found.retryAt()) || version != found.version {
		return nil
	}
	switch {
	case found.needs > free:
		return fmt.Errorf("%w; it needs at least %d bytes", found.err, found.needs)
	case found.needs > 0:
		return nil
	}
	known := "the server has the same as before, and it"
	if version == "" {
		known = "the server does not say whether it has changed: it"
	}
	return fmt.Errorf("%w: %s is not fetched again before %s", found.err, known, found.retryAt().UTC().Format(time.RFC3339))
}
