// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"

	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver/kit"
)

// watchedActions lists the events after which a container's record may differ. A signal is
// not among them, because its effect is a separate event.
var watchedActions = []string{
	string(events.ActionCreate), string(events.ActionStart), string(events.ActionRestart),
	string(events.ActionStop), string(events.ActionDie), string(events.ActionOOM),
	string(events.ActionPause), string(events.ActionUnPause), string(events.ActionUpdate),
	string(events.ActionRename), string(events.ActionDestroy), string(events.ActionRemove),
	string(events.ActionHealthStatus), // the engine matches it with every health status
}

// Watch implements driver.Driver: it sends the engine's events of this cluster's
// containers, and the progress and ends of fetches.
func (d *Driver) Watch(ctx context.Context) (<-chan types.UID, error) {
	// Events are requested from the time on that the engine has, because an engine answers the request
	// slightly before it begins to listen.
	limited, end := d.calls.Limit(ctx)
	since, err := d.engine.SystemTime(limited)
	end()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := d.openEventStream(ctx, cancel, since)
	if err != nil {
		cancel()
		return nil, err
	}
	queue := d.watches.Open(ctx)
	d.cache.streamOpened()
	uids := make(chan types.UID)
	go func() {
		defer cancel()
		d.followEvents(ctx, stream, queue)
	}()
	go func() {
		defer close(uids)
		kit.Send(ctx, queue, uids, nil)
	}()
	return uids, nil
}

// openEventStream returns when the engine has answered. Only that is limited in time;
// the stream lasts as long as ctx.
func (d *Driver) openEventStream(ctx context.Context, cancel context.CancelFunc, since string) (stream client.EventsResult, err error) {
	answerCtx, stop := d.calls.Limit(ctx)
	defer stop()
	answered := context.AfterFunc(answerCtx, cancel)
	defer answered()
	filter := client.Filters{}.
		Add("type", string(events.ContainerEventType)).
		Add("label", LabelCluster+"="+d.Options.ClusterID).
		Add("event", watchedActions...)
	err = d.engine.Read(ctx, "follow events", func(ctx context.Context, c *client.Client) error {
		stream = c.Events(ctx, client.EventsListOptions{Since: since, Filters: filter})
		return answerCtx.Err()
	})
	return stream, err
}

// followEvents reads as fast as it can, because an engine drops events for a slow reader.
// It returns when the stream ends, whatever the cause.
func (d *Driver) followEvents(ctx context.Context, stream client.EventsResult, queue *kit.Queue) {
	defer d.cache.streamClosed()
	for {
		select {
		case e := <-stream.Messages:
			d.cache.invalidateInspection(e.Actor.ID)
			queue.Add(types.UID(e.Actor.Attributes[LabelUID]))
		case err := <-stream.Err:
			d.Options.Log.V(1).Info("Docker's event stream ended", "host", d.engine.Address(), "err", err)
			return
		case <-ctx.Done():
			return
		}
	}
}
