// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"

	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
)

// watchedActions lists the events after which a container's record may differ. A signal is
// not among them, because its effect is an event of its own.
var watchedActions = []string{
	string(events.ActionCreate), string(events.ActionStart), string(events.ActionRestart),
	string(events.ActionStop), string(events.ActionDie), string(events.ActionOOM),
	string(events.ActionPause), string(events.ActionUnPause), string(events.ActionUpdate),
	string(events.ActionRename), string(events.ActionDestroy), string(events.ActionRemove),
}

// Watch implements driver.Driver: it sends the engine's events of this cluster's
// containers, and the progress and ends of fetches.
func (d *Driver) Watch(ctx context.Context) (<-chan types.UID, error) {
	since, err := d.readEngineTime(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := d.openEventStream(ctx, cancel, since)
	if err != nil {
		cancel()
		return nil, err
	}
	queue := workqueue.NewTyped[types.UID]()
	d.watches.Store(queue, true)
	d.cache.streamOpened()
	uids := make(chan types.UID)
	go func() {
		defer cancel()
		d.followEvents(ctx, stream, queue)
	}()
	go func() {
		defer close(uids)
		deliverUIDs(ctx, queue, uids)
	}()
	return uids, nil
}

// readEngineTime returns the engine's own time. Events are requested from that time on,
// because an engine answers the request slightly before it begins to listen.
func (d *Driver) readEngineTime(ctx context.Context) (string, error) {
	ctx, cancel := d.withCallTimeout(ctx)
	defer cancel()
	return d.engine.SystemTime(ctx)
}

// openEventStream returns when the engine has answered. Only that is limited in time;
// the stream lasts as long as ctx.
func (d *Driver) openEventStream(ctx context.Context, cancel context.CancelFunc, since string) (stream client.EventsResult, err error) {
	answerCtx, stop := d.withCallTimeout(ctx)
	defer stop()
	answered := context.AfterFunc(answerCtx, cancel)
	defer answered()
	err = d.engine.Read(ctx, "follow events", func(ctx context.Context, c *client.Client) error {
		stream = c.Events(ctx, client.EventsListOptions{Since: since, Filters: d.eventFilter()})
		return answerCtx.Err()
	})
	return stream, err
}

func (d *Driver) eventFilter() client.Filters {
	return client.Filters{}.
		Add("type", string(events.ContainerEventType)).
		Add("label", LabelCluster+"="+d.ClusterID).
		Add("event", watchedActions...)
}

// followEvents reads as fast as it can, because an engine drops events for a slow reader.
// It returns when the stream ends, whatever the cause.
func (d *Driver) followEvents(ctx context.Context, stream client.EventsResult, queue *watchQueue) {
	defer d.watches.Delete(queue)
	defer d.cache.streamClosed()
	for {
		select {
		case e := <-stream.Messages:
			d.cache.invalidateInspection(e.Actor.ID)
			queue.Add(types.UID(e.Actor.Attributes[LabelUID]))
		case err := <-stream.Err:
			d.Log.V(1).Info("Docker's event stream ended", "host", d.engine.Address(), "err", err)
			return
		case <-ctx.Done():
			return
		}
	}
}

// watchQueue has the UIDs that one Watch has to send, each of them once, so it loses no
// UID and cannot grow beyond the number of servers.
type watchQueue = workqueue.Typed[types.UID]

// notifyWatches has every open Watch send the UIDs.
func (d *Driver) notifyWatches(uids ...types.UID) {
	for _, queue := range d.watches.Keys() {
		for _, uid := range uids {
			queue.Add(uid)
		}
	}
}

// deliverUIDs sends what is queued until ctx ends.
func deliverUIDs(ctx context.Context, queue *watchQueue, uids chan<- types.UID) {
	defer context.AfterFunc(ctx, queue.ShutDown)()
	for {
		uid, shutDown := queue.Get()
		if shutDown {
			return
		}
		queue.Done(uid) // now, so that an event during the sending queues it again
		select {
		case uids <- uid:
		case <-ctx.Done():
			return
		}
	}
}
