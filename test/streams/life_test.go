// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
	"cloudnative.tw/drover/test/tier"
)

// TestKubectlsClient checks each server with kubectl's client library.
func TestKubectlsClient(t *testing.T) {
	t.Parallel()
	for name, s := range servers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace := s.createVM(t)
			text := strings.Repeat("0123456789abcdef\n", 50_000)
			var output bytes.Buffer
			err := s.connect(t, namespace, streams.Exec, "command=cat&stdin=true&stdout=true", remotecommand.StreamOptions{Stdin: strings.NewReader(text), Stdout: &output})
			assert.True(t, err == nil && output.String() == text, "%d bytes of %d came back, %v", output.Len(), len(text), err)
			var code exec.CodeExitError
			err = s.connect(t, namespace, streams.Exec, "command=exit&command=7&stdout=true", remotecommand.StreamOptions{Stdout: io.Discard})
			assert.True(t, errors.As(err, &code) && code.Code == 7, "the error of exit code 7 is %v", err)
			err = s.connect(t, namespace, streams.Exec, "command=missing&stdout=true", remotecommand.StreamOptions{Stdout: io.Discard})
			assert.True(t, err != nil && strings.HasPrefix(err.Error(), "CommandNotFound: command is"), "the error of a missing command is %v", err)
		})
	}
}

func (s *server) connect(t *testing.T, namespace string, stream streams.Stream, query string, o remotecommand.StreamOptions) error {
	t.Helper()
	config := s.configOf(s.Config)
	e, err := remotecommand.NewWebSocketExecutor(config, http.MethodGet, config.Host+streams.Path(namespace, "vm", stream)+"?"+query)
	assert.NoError(t, err)
	return e.StreamWithContext(t.Context(), o)
}

// TestReboot checks that a console and a log end with the server, and can be opened again.
func TestReboot(t *testing.T) {
	t.Parallel()
	for name, s := range servers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace := s.createVM(t)
			console := s.mustDial(t, namespace, streams.Console)
			typeAndRead(t, console, "before")
			log := s.get(t, s.configOf(s.Config), streams.Path(namespace, "vm", streams.Log)+"?follow=true") //nolint:bodyclose // get closes it
			vm := framework.NewVM("vm").Namespace(namespace).Obj()
			s.setAction(t, namespace, api.ActionStopped)
			end := readEnd(t, console)
			assert.True(t, strings.Contains(end, `"reason":"ServerStopped"`) && strings.Contains(end, `"code":409`), "the console ends with %s", end)
			text, err := io.ReadAll(log.Body)
			assert.True(t, err == nil && strings.Contains(string(text), "before"), "the log ends with %q, %v", text, err)
			if code, text := s.open(t, s.Config, namespace, streams.Console); code != http.StatusConflict {
				t.Errorf("the console of a stopped server is answered %d: %s", code, text)
			}
			s.setAction(t, namespace, api.ActionActive)
			s.waitUntilActive(t, vm)
			typeAndRead(t, s.mustDial(t, namespace, streams.Console), "after")
		})
	}
}

func (s *server) setAction(t *testing.T, namespace string, action api.Action) {
	t.Helper()
	vm := framework.NewVM("vm").Namespace(namespace).Obj()
	s.UpdateVM(t, vm, func(vm *api.VirtualMachine) { vm.Spec.Action = action })
}

func (s *server) waitUntilActive(t *testing.T, vm *api.VirtualMachine) {
	t.Helper()
	vm = s.UpdateVM(t, vm, func(*api.VirtualMachine) {})
	s.WaitForVM(t, vm, framework.IsActive)
}

// requestTimeout is longer than the API server's timeout of requests.
const requestTimeout = 70 * time.Second

// TestIdleSession checks that no deadline of the API server ends a session that is open longer
// than the timeout of requests.
func TestIdleSession(t *testing.T) {
	tier.Full(t, "it waits longer than a request may take; TestFairness keeps that an open stream counts as none")
	t.Parallel()
	for name, s := range servers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace := s.createVM(t)
			console := s.mustDial(t, namespace, streams.Console)
			log := s.get(t, s.configOf(s.Config), streams.Path(namespace, "vm", streams.Log)+"?follow=true") //nolint:bodyclose // get closes it
			answering := make(chan error, 1)
			go func() { answering <- readUntil(console, "still here") }() // answers pings while it reads
			time.Sleep(requestTimeout)
			assert.NoError(t, console.WriteMessage(websocket.BinaryMessage, []byte("\x00still here\n")))
			assert.ReportError(t, <-answering)
			var text []byte
			for buffer := make([]byte, 1024); !bytes.Contains(text, []byte("still here")); {
				n, err := log.Body.Read(buffer)
				text = append(text, buffer[:n]...)
				assert.Require(t, err == nil, "the log ends with %q, %v", text, err)
			}
		})
	}
}

// TestFairness checks that open streams do not occupy seats of API Priority and Fairness, for
// which other requests would have to wait.
func TestFairness(t *testing.T) {
	t.Parallel()
	s := standalone
	namespace := s.createVM(t)
	user, subject := s.NewAccount(t, namespace, "editor")
	s.Bind(t, namespace, "edit", subject)
	checkStreams(t, s, user, namespace, s.CreateNamespace(t), roles["edit"])
	for range 30 {
		ws, response, err := s.dial(t, s.configOf(user), streams.Path(namespace, "vm", streams.Console))
		assert.NoError(t, err)
		_ = response.Body.Close()
		t.Cleanup(func() { _ = ws.Close() })
	}
	assert.Eventually(t, "the seats are free", func(t testing.TB) error {
		metrics, err := s.ReadAPIMetrics(t.Context())
		assert.NoError(t, err)
		seats := metrics.Sum("apiserver_flowcontrol_current_executing_seats")
		return assert.ErrorUnless(seats <= 10, "%v are occupied", seats)
	})
}

// TestStop checks that `drover up` ends open streams with a reason when it stops, and does not
// wait for their clients.
func TestStop(t *testing.T) {
	tier.Full(t, "it starts a cluster; TestEndOfRights of internal/streams keeps that streams end with their server")
	t.Parallel()
	env, err := testenv.NewWith(framework.ClusterOptions{WithController: true, Args: []string{"--vm-driver=fake"}})
	assert.NoError(t, err)
	t.Cleanup(func() { _ = env.Close() })
	s := &server{Environment: env, url: env.Config.Host}
	namespace := s.createVM(t)
	console := s.mustDial(t, namespace, streams.Console)
	typeAndRead(t, console, "hello")
	s.mustDial(t, namespace, streams.Console)                                                        // its client never reads
	log := s.get(t, s.configOf(s.Config), streams.Path(namespace, "vm", streams.Log)+"?follow=true") //nolint:bodyclose // get closes it
	stopped := make(chan error, 1)
	go func() { stopped <- s.Stop() }()
	assert.Contains(t, "the console ends with", readEnd(t, console), `"reason":"ServiceUnavailable"`)
	text, err := io.ReadAll(log.Body)
	assert.True(t, err != nil, "the log ends without an error after %q", text)
	assert.ReportError(t, <-stopped)
	assert.True(t, !strings.Contains(s.Output(), "did not stop in"), "a part did not stop: %s", s.Output())
}

// typeAndRead types a line and waits until the console shows it.
func typeAndRead(t *testing.T, ws *websocket.Conn, line string) {
	t.Helper()
	assert.NoError(t, ws.WriteMessage(websocket.BinaryMessage, []byte("\x00"+line+"\n")))
	assert.NoError(t, readUntil(ws, line))
}

func readUntil(ws *websocket.Conn, want string) error {
	var seen []byte
	for !bytes.Contains(seen, []byte(want)) {
		_, message, err := ws.ReadMessage()
		if err != nil || message[0] != 1 {
			return fmt.Errorf("the stream shows %q, then %q, %w", seen, message, err)
		}
		seen = append(seen, message[1:]...)
	}
	return nil
}

// readEnd reads until the Status in channel 3, and returns it.
func readEnd(t *testing.T, ws *websocket.Conn) string {
	t.Helper()
	for {
		_, message, err := ws.ReadMessage()
		assert.Require(t, err == nil, "the stream ends without a Status: %v", err)
		if message[0] == 3 {
			return string(message[1:])
		}
	}
}
