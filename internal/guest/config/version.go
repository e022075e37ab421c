// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !nextrelease

package config

// Version is the version of the interface between host and guest: this format, disks and ports. Raise it with each change
// of them. hack/guest.sh reads it from this file, and writes it beside the guest's files for the host.
const Version = 9
