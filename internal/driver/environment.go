// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
)

// Environment is what a program gives to each of its drivers, whatever their own options
// are.
type Environment struct {
	// ClusterID marks the servers of this cluster. Required.
	ClusterID string
	// OwnDirs are the program's own folders. No server may read them, for example as an
	// image.
	OwnDirs []string
	// Clock is required, Log may be zero, and Registerer may be nil.
	Clock      clock.WithTicker
	Log        logr.Logger
	Registerer prometheus.Registerer
}
