// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver/kit"
)

// store keeps the records of servers. Callers may change a returned record, but not
// the slices in it.
type store interface {
	// engineID reads the engine's identity. From then on getRecord, listRecords and
	// changeRecord fail if they find another engine. watchRecords accepts any engine.
	engineID() (string, error)
	// getRecord returns the record of uid, or nil if it does not exist.
	getRecord(uid types.UID) (*Record, error)
	// listRecords returns the existing records of some uids, or all records, including
	// those of released servers.
	listRecords(ctx context.Context, uids ...types.UID) ([]Record, error)
	// changeRecord replaces the record of uid by the result of edit, atomically. Nil
	// stands for no record, before and after the edit. A record that edit marks as
	// retained is no longer the record of its uid. If a newer leader has changed the
	// engine, changeRecord returns ErrFenced; this check is part of the atomic
	// operation.
	changeRecord(uid types.UID, leader leaderEpoch, edit func(*Record) (*Record, error)) error
	// watchRecords queues the UIDs of records that change, until ctx ends. The queue is shut
	// down when the engine is lost or events may have been lost.
	watchRecords(ctx context.Context) (*kit.Queue, error)
}

// leaderEpoch names the leader that changes servers of a cluster. Epoch 0 belongs to
// no leader and is not compared.
type leaderEpoch struct {
	clusterID string
	epoch     uint64
}
