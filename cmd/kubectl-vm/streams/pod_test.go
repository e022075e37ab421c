// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/test/assert"
)

// TestForPod checks which requests go to the API server for a VM that is a pod, and which errors its
// refusals become: missing rights stay, and a machine that does not run may come back.
func TestForPod(t *testing.T) {
	t.Parallel()
	var asked string
	code := http.StatusNotFound
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.String()
		if strings.HasSuffix(r.URL.Path, "/log") {
			_, _ = io.WriteString(w, "boots")
			return
		}
		http.Error(w, "container not found", code)
	}))
	t.Cleanup(server.Close)
	c, err := ForPod(&rest.Config{Host: server.URL}, "web-1a2b3c4d")
	assert.NoError(t, err)
	body, err := c.Get(t.Context(), "blue", "web", streams.Log, url.Values{"tailLines": {"3"}})
	assert.NoError(t, err)
	text, err := io.ReadAll(body)
	want := "/api/v1/namespaces/blue/pods/web-1a2b3c4d/log?container=machine&tailLines=3"
	assert.True(t, err == nil && string(text) == "boots" && asked == want, "it asked %s and read %q, %v", asked, text, err)
	at := c.URL("blue", "web", streams.Console, url.Values{"stdin": {"true"}, "stdout": {"true"}, "tty": {"true"}})
	for refusal, mayReconnect := range map[int]bool{http.StatusNotFound: true, http.StatusInternalServerError: true, http.StatusForbidden: false, http.StatusUnauthorized: false} {
		code = refusal
		err := c.Connect(t.Context(), at, remotecommand.StreamOptions{Stdout: io.Discard, Tty: true})
		want := "/api/v1/namespaces/blue/pods/web-1a2b3c4d/attach?container=machine&stdin=true&stdout=true"
		assert.True(t, asked == want, "it asked %s, want %s", asked, want)
		session := ConsoleSession{}
		assert.True(t, err != nil && apierrors.IsConflict(Cause(err)) == mayReconnect && session.mayReconnect(err) == mayReconnect,
			"%d gives %v, want one after which the console may return: %t", refusal, err, mayReconnect)
	}
}

// TestPodPort checks the connection to a port of a VM that is a pod: data passes both ways, also after
// one of them has ended, and a refusal of the node is reported.
func TestPodPort(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		want := "/api/v1/namespaces/blue/pods/web-1a2b3c4d/portforward"
		assert.True(t, r.URL.String() == want, "it asked %s, want %s", r.URL, want)
		servePorts(t, w, r)
	}))
	t.Cleanup(server.Close)
	c, err := ForPod(&rest.Config{Host: server.URL}, "web-1a2b3c4d")
	assert.NoError(t, err)
	var answer strings.Builder
	err = c.ConnectPort(t.Context(), "blue", "web", 22, connectionOf(strings.NewReader("typed"), &answer))
	assert.True(t, err == nil && answer.String() == "port 22 got typed", "it got %q, %v", answer.String(), err)
	err = c.ConnectPort(t.Context(), "blue", "web", 23, connectionOf(strings.NewReader(""), io.Discard))
	assert.ErrorSays(t, "a port that nothing listens on", err, "connection refused")
	ctx, leave := context.WithCancel(t.Context())
	typed, _ := io.Pipe() // nothing is ever typed
	over := make(chan error)
	go func() { over <- c.ConnectPort(ctx, "blue", "web", 22, connectionOf(typed, io.Discard)) }()
	leave()
	assert.ErrorIs(t, "a connection that its user has left", <-over, context.Canceled)
}

// TestPodPortOfSilentServer checks that a person can leave while an API server does not answer.
func TestPodPortOfSilentServer(t *testing.T) {
	t.Parallel()
	asked, release := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(asked)
		<-release
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(release) })
	c, err := ForPod(&rest.Config{Host: server.URL}, "web-1a2b3c4d")
	assert.NoError(t, err)
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		<-asked
		leave()
	}()
	assert.ErrorIs(t, "a connection whose context has ended", c.ConnectPort(ctx, "blue", "web", 22, connectionOf(strings.NewReader(""), io.Discard)), context.Canceled)
}

func connectionOf(reader io.Reader, writer io.Writer) io.ReadWriter {
	return struct {
		io.Reader
		io.Writer
	}{reader, writer}
}

// servePorts serves the ports of a pod as API servers do. Port 22 says what it got once it has all; all
// others refuse.
func servePorts(t *testing.T, w http.ResponseWriter, r *http.Request) {
	upgrader := websocket.Upgrader{Subprotocols: []string{"SPDY/3.1+" + portforward.PortForwardProtocolV1Name}}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		t.Error(err)
		return
	}
	var failure httpstream.Stream
	tunnel, err := spdy.NewServerConnection(portforward.NewTunnelingConnection("server", conn), func(s httpstream.Stream, _ <-chan struct{}) error {
		if s.Headers().Get(corev1.StreamType) == corev1.StreamTypeError {
			failure = s
			return nil
		}
		go func() {
			if s.Headers().Get(corev1.PortHeader) == "22" {
				text, _ := io.ReadAll(s)
				_, _ = io.WriteString(s, "port 22 got "+string(text))
			} else {
				_, _ = io.WriteString(failure, "connection refused")
			}
			_, _ = s.Close(), failure.Close()
		}()
		return nil
	})
	if err != nil {
		t.Error(err)
		return
	}
	<-tunnel.CloseChan()
}

func TestParseForward(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Forward{
		"8080:80":     {8080, 80},
		"80":          {80, 80},
		":80":         {0, 80},
		"0:80":        {0, 80},
		"65535:65535": {65535, 65535},
	} {
		got, err := ParseForward(text)
		assert.True(t, err == nil && got == want, "%q is %+v, %v, want %+v", text, got, err, want)
	}
	for _, text := range []string{"", ":", "0", "80:", "80:0", "65536:80", "80:65536", "-1:80", "a:80", "1:2:3", "+1:80"} {
		got, err := ParseForward(text)
		assert.True(t, err != nil, "%q is accepted as %+v", text, got)
	}
}
