// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"net/http"
	"sync/atomic"

	"cloudnative.tw/drover/internal/streams"
)

// LateStreams serves streams with a handler that is set later: kube-apiserver, which serves
// LateStreams, starts before the controller, which has the handler.
type LateStreams struct{ handler atomic.Pointer[http.Handler] }

// Set sets the handler. Earlier requests are refused.
func (l *LateStreams) Set(handler http.Handler) { l.handler.Store(&handler) }

// ServeHTTP implements http.Handler.
func (l *LateStreams) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if handler := l.handler.Load(); handler != nil {
		(*handler).ServeHTTP(w, r)
		return
	}
	streams.Refuse(w, streams.ErrStarting)
}
