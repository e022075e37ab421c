// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !faults

package app

import (
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
)

// addCrashPoints does nothing: see crashpoints.go.
func addCrashPoints(*rest.Config) {}

// addDecisionsFlag does nothing: see crashpoints.go.
func addDecisionsFlag(*pflag.FlagSet, *Options) {}
