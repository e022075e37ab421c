// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package schedules explores schedules of Drover's own parts in one process.
package schedules
