// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
)

// streamCalls returns a call for each optional interface that the driver implements.
func (e *Env) streamCalls(d driver.Driver) map[string]func(ctx context.Context, uid types.UID) error {
	calls := map[string]func(context.Context, types.UID) error{}
	if c, ok := driver.As[driver.Consoler](d); ok {
		calls["Console"] = func(ctx context.Context, uid types.UID) error { return assert.ErrorOf(c.Console(ctx, uid)) }
	}
	if l, ok := driver.As[driver.LogReader](d); ok {
		calls["Logs"] = func(ctx context.Context, uid types.UID) error {
			return assert.ErrorOf(l.Logs(ctx, uid, driver.LogOptions{}))
		}
	}
	if x, ok := driver.As[driver.Executor](d); ok && e.Guest.Commands.Print != nil {
		calls["Exec"] = func(ctx context.Context, uid types.UID) error {
			_, _, _, err := runCommand(ctx, x, uid, e.Guest.Commands.Print(newWord()))
			return err
		}
	}
	if c, ok := driver.As[driver.Dialer](d); ok {
		calls["Dial"] = func(ctx context.Context, uid types.UID) error {
			return assert.ErrorOf(c.Dial(ctx, uid, max(1, e.Guest.Port)))
		}
	}
	if l, ok := driver.As[driver.InterfaceLister](d); ok {
		calls["Interfaces"] = func(ctx context.Context, uid types.UID) error { return assert.ErrorOf(l.Interfaces(ctx, uid)) }
	}
	return calls
}

// testStreamsRefused checks that calls reach only servers that run and belong to this cluster.
func testStreamsRefused(t *testing.T, e *Env) {
	running, _ := e.Start(t, "theirs")
	released, s := e.Start(t, "released")
	assert.Eventually(t, "a release", func(testing.TB) error {
		return e.Driver.Delete(t.Context(), driver.Target{UID: released.UID, ID: s.ID}, true)
	})
	stopped, _ := e.Start(t, "stopped")
	e.Stop(t, stopped)
	never := e.Create(t, "never")
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()

	other := e.streamCalls(e.Open(t, string(uuid.NewUUID())))
	for name, call := range e.streamCalls(e.Driver) {
		assert.ErrorIs(t, name+" of another cluster's server", other[name](t.Context(), running.UID), driver.ErrNotFound)
		assert.ErrorIs(t, name+" of a released server", call(t.Context(), released.UID), driver.ErrNotFound)
		assert.ErrorIs(t, name+" of an unknown UID", call(t.Context(), uuid.NewUUID()), driver.ErrNotFound)
		assert.ErrorIs(t, name+" of a server that never ran", call(t.Context(), never.UID), driver.ErrRetry)
		for _, uid := range []types.UID{"", "../x", "a\nb"} {
			assert.ErrorIs(t, fmt.Sprintf("%s of the UID %q", name, uid), call(t.Context(), uid), driver.ErrInvalid)
		}
		assert.True(t, call(cancelled, running.UID) != nil, "%s with a cancelled context: got no error", name)
		if name != "Logs" {
			assert.ErrorIs(t, name+" of a server that is off", call(t.Context(), stopped.UID), driver.ErrRetry)
		}
	}
}

func testStreamsLost(t *testing.T, e *Env) {
	Require(t, e.Losable != nil, "Losable")
	d, lose, restore := e.Losable(t)
	calls := e.streamCalls(d)
	if len(calls) == 0 {
		t.Skip("the driver has none of the optional interfaces")
	}
	uid := uuid.NewUUID()
	for name, call := range calls {
		assert.ErrorIs(t, name, call(t.Context(), uid), driver.ErrNotFound)
	}
	lose()
	defer restore()
	for name, call := range calls {
		assert.ErrorIs(t, name+" without the engine", call(t.Context(), uid), driver.ErrUnavailable)
	}
}
