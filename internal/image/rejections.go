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
	// versionedRetry is how long unusable content is not fetched again, unless its version
	// changes.
	versionedRetry = 6 * time.Hour
	// unversionedRetry is the same for content without a version, where only a fetch shows
	// whether the content has changed.
	unversionedRetry = 5 * time.Minute
	// maxRejections is how many sources are remembered.
	maxRejections = 1000
)

// rejections remembers fetched content that was unusable, or did not fit on the disk, by the key of
// the reference. Without it, each attempt would download the content again.
type rejections struct {
	mu    sync.Mutex
	known map[string]rejection
}

type rejection struct {
	version string
	at      time.Time
	err     error
	needs   int64 // minimum of free bytes for another fetch, if the disk was too full; else 0
}

// retryAt returns when the content is fetched again.
func (r rejection) retryAt() time.Time {
	if r.version == "" {
		return r.at.Add(unversionedRetry)
	}
	return r.at.Add(versionedRetry)
}

// remember adds a rejection. It forgets rejections that are due for a retry.
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

// findRejection returns why the content was rejected before, if it may be the same content. free is
// how many bytes of the disk are free now.
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
	cause := "the content on the server has not changed, so it"
	if version == "" {
		cause = "the server does not report whether the content has changed: it"
	}
	return fmt.Errorf("%w: %s is not fetched again before %s", found.err, cause, found.retryAt().UTC().Format(time.RFC3339))
}
