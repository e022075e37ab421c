// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"sync/atomic"

	"cloudnative.tw/drover/internal/streams"
)

// lateStreams serves streams once the controller, which starts after kube-apiserver, has
// given the handler.
type lateStreams struct{ handler atomic.Pointer[http.Handler] }

func (l *lateStreams) set(handler http.Handler) { l.handler.Store(&handler) }

// ServeHTTP implements http.Handler.
func (l *lateStreams) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if handler := l.handler.Load(); handler != nil {
		(*handler).ServeHTTP(w, r)
		return
	}
	streams.Refuse(w, streams.ErrStarting)
}
