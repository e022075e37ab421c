// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver/kit"
)

// Watch reports servers whose record changes or whose boot or shutdown time
// ends.
func (d *Driver) Watch(ctx context.Context) (<-chan types.UID, error) {
	if err := kit.CheckContext(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	queue, err := d.store.watchRecords(ctx)
	var records []Record
	if err == nil {
		records, err = d.store.listRecords(ctx)
	}
	if err != nil {
		cancel()
		return nil, err
	}
	for _, r := range records {
		if r.ClusterID == d.clusterID && !r.Retained {
			d.awaitTransition(ctx, queue, r)
		}
	}
	uids := make(chan types.UID)
	go func() {
		defer close(uids)
		defer cancel()
		kit.Send(ctx, queue, uids, func(uid types.UID) bool { return d.isReported(ctx, queue, uid) })
		d.log.V(1).Info("Watch of the fake engine closed", "cause", context.Cause(ctx))
	}()
	return uids, nil
}

// isReported reports whether the server belongs to this cluster, and queues its next transition.
// A removed server is reported too, since its cluster is unknown.
func (d *Driver) isReported(ctx context.Context, queue *kit.Queue, uid types.UID) bool {
	r, err := d.store.getRecord(uid)
	if err != nil || r == nil {
		return true
	}
	if r.ClusterID == d.clusterID {
		d.awaitTransition(ctx, queue, *r)
	}
	return r.ClusterID == d.clusterID
}

// awaitTransition queues the server once its boot or shutdown time ends.
func (d *Driver) awaitTransition(ctx context.Context, queue *kit.Queue, r Record) {
	now := d.clock.Now()
	at := nextTransition(r, now)
	if at.IsZero() {
		return
	}
	timer := d.clock.NewTimer(at.Sub(now))
	go func() {
		defer timer.Stop()
		if d.clock.Now().Before(at) { // a fake clock may have passed it before the timer was set
			select {
			case <-timer.C():
			case <-ctx.Done():
			}
		}
		queue.Add(r.UID)
	}()
}
