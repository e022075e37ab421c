// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package faultinject is a decorator that makes a driver fail on purpose, as a file
// says that is read while Drover runs.
//
// Start with Wrap in faults.go; file.go reads the file. It is YAML or JSON and
// maps VMs to their faults. A VM is "namespace/name", or a name in all
// namespaces, or "*" for all; the most exact entry is the one that counts:
//
//	default/test-vm:
//	  failCreate: 3             # the next 3 creations fail
//	  kind: exhausted           # as what (default: retry)
//	  message: no room left     # what they say
//	slow-vm:
//	  latency: 2s               # before each Ensure and Delete
//	stuck-vm:
//	  hang: true                # Ensure and Delete return when they are cut short
//	torn-vm:
//	  succeedThenTimeout: true  # Ensure and Delete do it, then report a timeout
//	"*":
//	  engineUnavailable: true   # every call fails, every Watch closes
//
// Under "*", hang and latency hold for List, Usage and EngineID too. Kinds are
// retry, invalid, unsupported, exhausted, unavailable and other, which is an
// error that no sentinel explains.
//
// failCreate counts each VM by itself, and begins anew when its entry is
// changed. A file that is not there means no faults; one with a mistake in it
// is logged, and what it said before holds on.
package faultinject
