// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// store keeps the records. Records that it gives out are the caller's to
// change, but not the slices in them.
type store interface {
	// engineID reads the engine's identity. From then on get, list and change
	// fail when they meet another engine; watch accepts it too.
	engineID() (string, error)
	// get returns the record of uid, or nil.
	get(uid types.UID) (*Record, error)
	// list returns the records that there are of some uids, or all records, those
	// of released servers included.
	list(ctx context.Context, uids ...types.UID) ([]Record, error)
	// change replaces the record of uid (nil where there is none) by what edit
	// makes of it (nil removes it), atomically. A record that edit marks as
	// retained is put aside: it is no longer the record of its uid. Where a
	// newer leader has claimed the engine it is ErrFenced, and the check is
	// part of the atom.
	change(uid types.UID, by claim, edit func(*Record) (*Record, error)) error
	// watch collects the UIDs of records that change. The mailbox is closed
	// when the engine is lost or events may have been.
	watch() (box *mailbox, stop func(), err error)
}

// claim is a cluster's leader's right to change servers. Epoch 0 is nobody's
// and is not compared.
type claim struct {
	clusterID string
	epoch     uint64
}

// uidQueue is a queue of UIDs, each in it at most once.
type uidQueue struct {
	order  []types.UID
	queued map[types.UID]bool
}

func (q *uidQueue) put(uid types.UID) {
	if q.queued[uid] {
		return
	}
	if q.queued == nil {
		q.queued = map[types.UID]bool{}
	}
	q.queued[uid] = true
	q.order = append(q.order, uid)
}

func (q *uidQueue) pop() {
	delete(q.queued, q.order[0])
	q.order = q.order[1:]
}

// mailbox holds what one watcher has not taken yet. It never blocks the sender
// and never loses a UID.
type mailbox struct {
	mu     sync.Mutex
	uids   uidQueue
	closed bool
	// ready has a value while there is something to take.
	ready chan struct{}
}

func newMailbox() *mailbox { return &mailbox{ready: make(chan struct{}, 1)} }

func (b *mailbox) put(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.uids.put(uid)
	b.notify()
}

func (b *mailbox) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.notify()
}

func (b *mailbox) notify() {
	select {
	case b.ready <- struct{}{}:
	default:
	}
}

// take empties the mailbox; open is false when it was closed.
func (b *mailbox) take() (uids []types.UID, open bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	uids = b.uids.order
	b.uids = uidQueue{}
	return uids, !b.closed
}
