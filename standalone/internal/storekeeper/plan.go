// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package storekeeper

import "time"

// How long history is kept: usually as long as kube-apiserver itself would keep it, and for a shorter time
// if there is much history. Clients that ask for older state have to list again.
const (
	usualRetention = 5 * time.Minute
	shortRetention = 10 * time.Second
)

// The shortest time between two defragmentations, usually and while etcd refuses writes.
const (
	usualPause = 5 * time.Minute
	fullPause  = 10 * time.Second
)

// facts are facts about the store at one moment. Sizes are in bytes.
type facts struct {
	quota     int64 // the limit of objects
	fileLimit int64 // the limit of file
	file      int64 // the size of etcd's file
	inUse     int64 // the part of the file that is not free
	objects   int64
	history   int64
	isFull    bool // etcd refuses writes
	isStart   bool // no client is connected yet
	// sinceCompact is the time since history was last removed, and sinceDefragment the time since the
	// file was last defragmented.
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

// shouldDefragment reports whether the file should be defragmented. During this, etcd does not answer. The
// file does not grow while it has free pages, so defragmenting is worthwhile only if the file is near its
// limit, or if it is large at a start.
func (f facts) shouldDefragment() bool {
	// At a start and in a full store, all history has just been removed. The database counts it as free
	// only after another write.
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

// hasSpace reports whether the file has enough free space for etcd to accept writes again.
func (f facts) hasSpace() bool { return f.file < f.fileLimit-f.fileLimit/16 }

// timedRevision is the newest revision at a point in time.
type timedRevision struct {
	at       time.Time
	revision int64
}

// revisionHistory is a list of revisions, oldest first.
type revisionHistory []timedRevision

// trimBefore removes the revisions before a time, and returns the newest revision at that time, or 0 if
// it is unknown.
func (h *revisionHistory) trimBefore(before time.Time) int64 {
	revision := int64(0)
	for len(*h) > 0 && !(*h)[0].at.After(before) {
		revision = (*h)[0].revision
		*h = (*h)[1:]
	}
	return revision
}
