// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"sync"

	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"
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
	since, err := d.engineTime(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := d.openEventStream(ctx, cancel, since)
	if err != nil {
		cancel()
		return nil, err
	}
	w := d.watches.open()
	d.cache.streamOpened()
	uids := make(chan types.UID)
	go func() {
		defer cancel()
		d.followEvents(ctx, stream, w)
	}()
	go func() {
		defer close(uids)
		w.deliver(ctx, uids)
	}()
	return uids, nil
}

// engineTime is the engine's own clock. Events are requested from that time on,
// because an engine answers the request slightly before it begins to listen.
func (d *Driver) engineTime(ctx context.Context) (string, error) {
	ctx, cancel := d.bound(ctx)
	defer cancel()
	info, err := d.info(ctx)
	return info.SystemTime, err
}

// openEventStream returns when the engine has answered. Only that is limited in time; the
// stream lasts as long as ctx.
func (d *Driver) openEventStream(ctx context.Context, cancel context.CancelFunc, since string) (stream client.EventsResult, err error) {
	soon, stop := d.bound(ctx)
	defer stop()
	intime := context.AfterFunc(soon, cancel)
	defer intime()
	err = d.read(ctx, "follow events", func(ctx context.Context, c *client.Client) error {
		stream = c.Events(ctx, client.EventsListOptions{Since: since, Filters: d.eventFilter()})
		return soon.Err()
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
func (d *Driver) followEvents(ctx context.Context, stream client.EventsResult, w *watch) {
	defer d.watches.close(w)
	defer d.cache.streamClosed()
	for {
		select {
		case e := <-stream.Messages:
			d.cache.invalidateInspection(e.Actor.ID)
			w.add(types.UID(e.Actor.Attributes[LabelUID]))
		case err := <-stream.Err:
			d.Log.V(1).Info("Docker's event stream ended", "host", d.host, "err", err)
			return
		case <-ctx.Done():
			return
		}
	}
}

// watches are the open Watch calls.
type watches struct {
	mu  sync.Mutex
	all map[*watch]bool
}

func (ws *watches) open() *watch {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := &watch{due: map[types.UID]bool{}, more: make(chan struct{}, 1)}
	if ws.all == nil {
		ws.all = map[*watch]bool{}
	}
	ws.all[w] = true
	return w
}

func (ws *watches) close(w *watch) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	delete(ws.all, w)
}

func (ws *watches) tell(uids ...types.UID) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for w := range ws.all {
		for _, uid := range uids {
			w.add(uid)
		}
	}
}

// watch holds each UID once until it is taken, so it loses no UID and cannot
// grow beyond the number of servers.
type watch struct {
	mu   sync.Mutex
	due  map[types.UID]bool
	more chan struct{}
}

func (w *watch) add(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.due[uid] = true
	select {
	case w.more <- struct{}{}:
	default:
	}
}

func (w *watch) take() map[types.UID]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	due := w.due
	w.due = map[types.UID]bool{}
	return due
}

func (w *watch) deliver(ctx context.Context, uids chan<- types.UID) {
	for {
		select {
		case <-w.more:
		case <-ctx.Done():
			return
		}
		for uid := range w.take() {
			select {
			case uids <- uid:
			case <-ctx.Done():
				return
			}
		}
	}
}
