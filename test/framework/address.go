// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"net"
	"testing"
)

// FreeAddress returns a loopback address without a listener at the moment.
func FreeAddress(t testing.TB) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	return listener.Addr().String()
}
