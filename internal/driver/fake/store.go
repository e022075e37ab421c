// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
)

// store keeps the records. Callers may change the records that it returns, but
// not the slices in them.
type store interface {
	// engineID reads the engine's identity. From then on get, list and change
	// fail if they find another engine; watch accepts it too.
	engineID() (string, error)
	// get returns the record of uid, or nil.
	get(uid types.UID) (*Record, error)
	// list returns the existing records of some uids, or all records, including those
	// of released servers.
	list(ctx context.Context, uids ...types.UID) ([]Record, error)
	// change replaces the record of uid (nil if there is none) by the result of
	// edit (nil removes it), atomically. A record that edit marks as retained is
	// put aside: it is no longer the record of its uid. If a newer leader has
	// claimed the engine it returns ErrFenced; that check is part of the atomic
	// operation.
	change(uid types.UID, by claim, edit func(*Record) (*Record, error)) error
	// watch collects the UIDs of records that change. The mailbox is closed
	// when the engine is lost or events may have been lost.
	watch() (box *mailbox, stop func(), err error)
}

// claim is the right of a cluster's leader to change servers. Epoch 0 belongs to
// no leader and is not compared.
type claim struct {
	clusterID string
	epoch     uint64
}
