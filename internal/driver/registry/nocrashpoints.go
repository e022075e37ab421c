// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !faults

package registry

import "cloudnative.tw/drover/internal/driver"

// addCrashPoints returns d unchanged. crashpoints.go has the version for builds with the tag faults.
func addCrashPoints(_ string, d driver.Driver) driver.Driver { return d }
