// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package faultinject is a decorator that makes a driver fail on purpose, as
// described by a file that is re-read while Drover runs.
//
// Start with Wrap in faultinject.go; file.go reads the file. It is YAML or JSON and
// maps VMs to their faults. A VM is "namespace/name", or a name in all
// namespaces, or "*" for all; only the most specific entry applies:
//
//	default/test-vm:
//	  failCreate: 3             # the next 3 creations fail
//	  kind: exhausted           # the kind of their error (default: retry)
//	  message: no room left     # the text of their error
//	slow-vm:
//	  latency: 2s               # before each Ensure and Delete
//	stuck-vm:
//	  hang: true                # Ensure and Delete block until their context ends
//	torn-vm:
//	  succeedThenTimeout: true  # Ensure and Delete succeed, then report a timeout
//	"*":
//	  engineUnavailable: true   # every call fails, every Watch closes
//
// Under "*", hang and latency apply to List, Usage and EngineID too. Kinds are
// retry, invalid, unsupported, exhausted, unavailable and other, which is an
// error without a kind of package driver.
//
// failCreate counts for each VM separately, and starts again when its entry
// changes. A missing file means no faults. After a mistake in the file, which is
// logged, the previous content remains in force.
package faultinject
