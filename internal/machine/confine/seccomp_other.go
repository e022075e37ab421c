// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 && !arm64

package confine

// Other architectures lack a filter.
const (
	auditArch        = 0
	firstForeignCall = 0
)

var legacyCalls []uintptr

var legacyStarts []uintptr

var duplicatingCalls []uintptr
