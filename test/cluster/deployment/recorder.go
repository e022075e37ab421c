// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver/docker"
	"cloudnative.tw/drover/test/assert"
)

// ContainerEvent is an event of a container that the engine reported.
type ContainerEvent struct {
	UID    types.UID
	ID     string
	Action events.Action
	At     time.Time
}

// Recorder records the events of all containers with a UID label.
type Recorder struct {
	mu     sync.Mutex
	events []ContainerEvent
	err    error
}

// StartRecorder records from now on, until the test ends.
func StartRecorder(t testing.TB, engine *Engine) *Recorder {
	t.Helper()
	r := &Recorder{}
	info, err := engine.Client.Info(t.Context(), client.InfoOptions{})
	assert.NoError(t, err)
	// The time is the engine's. With it no event is lost between the request and the engine's listening.
	stream := engine.Client.Events(t.Context(), client.EventsListOptions{
		Since:   info.Info.SystemTime,
		Filters: client.Filters{}.Add("type", string(events.ContainerEventType)).Add("label", docker.LabelUID),
	})
	go r.follow(t.Context(), stream)
	return r
}

func (r *Recorder) follow(ctx context.Context, stream client.EventsResult) {
	for {
		select {
		case e := <-stream.Messages:
			r.mu.Lock()
			r.events = append(r.events, ContainerEvent{
				UID: types.UID(e.Actor.Attributes[docker.LabelUID]), ID: e.Actor.ID, Action: e.Action, At: time.Unix(0, e.TimeNano),
			})
			r.mu.Unlock()
		case err := <-stream.Err:
			r.mu.Lock()
			r.err = errors.Join(err, errors.New("the engine's events ended"))
			r.mu.Unlock()
			return
		case <-ctx.Done():
			return
		}
	}
}

// Events returns the recorded events, or an error if some may be missing.
func (r *Recorder) Events() ([]ContainerEvent, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]ContainerEvent(nil), r.events...), r.err
}
