// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

// shards are the parts of the full tier.
var shards = []shard{}
