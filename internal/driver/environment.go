// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
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
	// Cluster reaches the cluster that the VirtualMachines are in, nil for programs without
	// one.
	Cluster *rest.Config
	// Owner returns the VirtualMachine with a UID, as far as one is known. Nil knows none.
	Owner func(types.UID) (Owner, bool)
	// AssertedOff returns the UID of the pod whose machine an operator has asserted to be off, on the
	// VirtualMachine with a UID. Nil knows none.
	AssertedOff func(types.UID) types.UID
	// Clock is required, Log may be zero, and Registerer may be nil.
	Clock      clock.WithTicker
	Log        logr.Logger
	Registerer prometheus.Registerer
}

// Owner is what is known of a VirtualMachine. Its labels are not to be changed.
type Owner struct {
	types.NamespacedName

	Labels map[string]string
}
