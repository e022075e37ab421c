// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package apiserver reads from the API server what a start of the controller waits for, and which VirtualMachines exist.
//
// Start with StartEpoch in crd.go. owners.go has the owners of servers, from the cache or live.
package apiserver

import (
	"time"

	"github.com/go-logr/logr"
)

// RequestTimeout bounds a request at the start.
const RequestTimeout = 10 * time.Second

// noticeDelay is how long a step of the start may take before the log says what it waits for.
const noticeDelay = 5 * time.Second

// AnnounceWait logs once what the start waits for, unless done is called before that takes long.
func AnnounceWait(log logr.Logger, message string, keysAndValues ...any) (done func()) {
	timer := time.AfterFunc(noticeDelay, func() { log.Info(message, keysAndValues...) })
	return func() { timer.Stop() }
}
