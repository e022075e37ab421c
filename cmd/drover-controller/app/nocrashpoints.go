// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !faults

package app

import "k8s.io/client-go/rest"

// addCrashPoints does nothing: see crashpoints.go.
func addCrashPoints(*rest.Config) {}
