// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/servers"
)

// TestRemovalOf checks that the advice names the folder of a released machine, never that of a
// machine with its UID that is managed, and that no engine's words are run by a shell.
func TestRemovalOf(t *testing.T) {
	t.Parallel()
	for driver, want := range map[string]string{
		"docker": `docker rm --force --volumes -- 'i'\''d'`,
		"qemu":   `in --qemu-dir: sudo pkill --full --pidfile './retained/u1.i'\''d/pid' -- '-uuid u1'; sudo rm -r './retained/u1.i'\''d'`,
		"pod":    `kubectl --namespace 'n' delete pods,persistentvolumeclaims --selector 'cloudnative.tw/retained,cloudnative.tw/uid=u1'`,
		"fake":   "remove fake server i'd of n/a",
	} {
		s := servers.Server{Driver: driver, Server: streams.Server{UID: "u1", ID: "i'd", Namespace: "n", Name: "a"}}
		if got := removalOf(s); got != want {
			t.Errorf("%s: got %s, want %s", driver, got, want)
		}
	}
}

// TestReadServersAgain checks that looks share a connection, and that a failed one ends nothing.
func TestReadServersAgain(t *testing.T) {
	t.Parallel()
	var opened atomic.Int32
	var failing atomic.Bool
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		isConfig := strings.Contains(r.URL.Path, "/configmaps/")
		if failing.Load() && !isConfig {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(w, "{}\n")
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	o, _ := newOptions()
	o.Config.APIServer = &server.URL
	s := &serversOptions{Options: o}
	for _, fails := range []bool{false, false, true, false, false} {
		failing.Store(fails)
		if _, err := s.readServers(t.Context()); apierrors.IsServiceUnavailable(err) != fails || err != nil && !fails {
			t.Fatalf("it fails: %t; got %v", fails, err)
		}
	}
	// One finds the servers, and two read them, before the failure and after it.
	if n := opened.Load(); n != 3 {
		t.Errorf("%d connections were opened", n)
	}
}
