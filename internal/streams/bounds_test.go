// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
	"k8s.io/apimachinery/pkg/types"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
)

// TestLargeWrite checks that a large write is sent in parts, each with a deadline of its own.
func TestLargeWrite(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.driver.exec = func(_ context.Context, r driver.ExecRequest) (int, error) {
		_, err := r.Stdout.Write(make([]byte, 3<<20))
		return 0, err
	}
	ws := f.dial(t, "alice", f.url(streams.Exec, "command=x&stdout=true"))
	for total := 0; total < 3<<20; {
		_, message, err := ws.ReadMessage()
		if err != nil || len(message) > chunk+1 {
			t.Fatalf("a message has %d bytes, %v", len(message), err)
		}
		total += len(message) - 1
	}
}

// TestOtherOrigin checks that the engine is not asked for a page of another host.
func TestOtherOrigin(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.driver.console = func(context.Context) (io.ReadWriteCloser, error) {
		t.Error("the engine was asked")
		return nil, driver.ErrUnavailable
	}
	dialer := websocket.Dialer{Subprotocols: []string{streams.Protocol}}
	_, response, err := dialer.Dial(strings.Replace(f.url(streams.Console, ""), "http", "ws", 1), //nolint:bodyclose // it is closed
		http.Header{"Authorization": {"Bearer alice"}, "Origin": {"https://evil.example"}})
	if err == nil || response == nil || response.StatusCode != http.StatusForbidden {
		t.Errorf("it is answered %v, %v", response, err)
	}
}

// TestLimitPerUser checks that one user leaves streams to the others, and gets places back.
func TestLimitPerUser(t *testing.T) {
	t.Parallel()
	a := newAdmission(1, 8)
	a.open(t.Context())
	_, exit, err := a.enter(types.UID("1"), "alice")
	_, _, err2 := a.enter(types.UID("2"), "alice")
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	if _, _, err := a.enter(types.UID("3"), "alice"); err == nil || !strings.Contains(err.Error(), `"alice" has 2 open streams`) {
		t.Errorf("the third: %v", err)
	}
	_, _, err = a.enter(types.UID("3"), "bob")
	exit()
	_, _, err2 = a.enter(types.UID("1"), "alice")
	if err != nil || err2 != nil {
		t.Error(err, err2)
	}
}
