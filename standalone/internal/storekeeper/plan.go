// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package storekeeper

import "time"

// How long history is kept: usually as long as kube-apiserver itself would keep it, and less
// if there is much of it. Clients that ask for older state are told to list again.
const (
	usualRetention = 5 * time.Minute
	shortRetention = 10 * time.Second
)

// How long the file is not rewritten again, usually and while etcd refuses writes.
const (
	usualPause = 5 * time.Minute
	fullPause  = 10 * time.Second
)

// facts are about the store at one moment.
type facts struct {
	quota     int64 // of objects
	fileLimit int64 // of etcd's file
	file      int64
	inUse     int64 // of the file
	objects   int64
	history   int64
	isFull    bool // etcd refuses writes
	isStart   bool // no client is connected yet
	// sinceCompact and sinceDefragment are how long ago history was removed, and the file
	// rewritten.
	sinceCompact, sinceDefragment time.Duration
}

// shouldCompact reports whether history should be removed now.
func (f facts) shouldCompact() bool {
	return f.retention() < usualRetention || f.sinceCompact >= time.Minute
}

// retention returns how long history should be kept.
func (f facts) retention() time.Duration {
	const part = 8
	switch {
	case f.isFull || f.isStart:
		return 0
	case f.history > f.quota/part:
		return shortRetention
	}
	return usualRetention
}

// shouldDefragment reports whether the file should be rewritten, for which etcd serves nobody.
// Free pages are used again, so that the file stays as large as it was at most; rewriting
// helps only if it comes near to its limit, or is large at a start.
func (f facts) shouldDefragment() bool {
	// All history was removed just now, which the database counts as free only after it has
	// written something.
	withoutHistory := f.file - min(f.inUse, f.objects)
	switch {
	case f.isStart:
		return f.file > f.quota && withoutHistory > f.file/2
	case f.isFull:
		return withoutHistory > f.fileLimit/16 && f.sinceDefragment >= fullPause
	}
	free := f.file - f.inUse
	return f.file > f.fileLimit/4*3 && free > f.fileLimit/4 && f.sinceDefragment >= usualPause
}

// hasRoom reports whether etcd may accept writes again.
func (f facts) hasRoom() bool { return f.file < f.fileLimit-f.fileLimit/16 }

// moment is a point in time, and the newest revision at it.
type moment struct {
	at       time.Time
	revision int64
}

// past is a list of moments, oldest first.
type past []moment

// trimBefore removes moments that are older than the given time, and returns the newest revision at
// that time, 0 if it is not known.
func (p *past) trimBefore(before time.Time) int64 {
	revision := int64(0)
	for len(*p) > 0 && !(*p)[0].at.After(before) {
		revision = (*p)[0].revision
		*p = (*p)[1:]
	}
	return revision
}
