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

// Environment has the values that a program gives to each of its drivers, in addition to the
// driver's options.
type Environment struct {
	// ClusterID marks the servers of this cluster. Required.
	ClusterID string
	// OwnDirs are the folders in which the program keeps its data. No server may read them, for
	// example as an image.
	OwnDirs []string
	// Cluster says how to reach the cluster that the VirtualMachines are in. It is nil for
	// programs without one.
	Cluster *rest.Config
	// Owner returns the VirtualMachine with a UID, if one is known. A nil function knows none.
	Owner func(types.UID) (Owner, bool)
	// PodAssertedOff returns the UID of a pod of the VirtualMachine with the given UID, if an operator has
	// asserted with an annotation that the pod's machine is off. A nil function knows none.
	PodAssertedOff func(types.UID) types.UID
	// Clock is required, Log may be zero, and Registerer may be nil.
	Clock      clock.WithTicker
	Log        logr.Logger
	Registerer prometheus.Registerer
}

// Owner has the name and the labels of a VirtualMachine. Callers do not change the labels.
type Owner struct {
	types.NamespacedName

	Labels map[string]string
}
