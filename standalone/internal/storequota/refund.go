// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package storequota

import (
	"context"
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/responsewriter"
)

// Ticket records the amounts that the last write of a request added to an account.
type Ticket struct {
	namespace            string
	growth, churn, extra int64
}

type ticketKey struct{}

// ticketOf returns the ticket of a request, or nil if the request does not have one.
func ticketOf(ctx context.Context) *Ticket {
	t, _ := ctx.Value(ticketKey{}).(*Ticket)
	return t
}

// WithRefunds returns a handler that subtracts a write from its account if the API refuses the request
// after the plugin has admitted it, for example because the object already exists or a ResourceQuota is
// used up. Otherwise a user could fill the accounts with such requests without storing anything.
func (a *Accounts) WithRefunds(api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost && r.Method != http.MethodPut && r.Method != http.MethodPatch {
			api.ServeHTTP(w, r)
			return
		}
		answer, ticket := &answer{ResponseWriter: w}, &Ticket{}
		api.ServeHTTP(responsewriter.WrapForHTTP1Or2(answer), r.WithContext(context.WithValue(r.Context(), ticketKey{}, ticket)))
		switch answer.code { // not after a timeout, since the object may still be stored
		case http.StatusForbidden, http.StatusConflict, http.StatusUnprocessableEntity:
			a.mu.Lock()
			defer a.mu.Unlock()
			a.refundTicket(ticket)
		}
	})
}

// refundTicket subtracts the amounts of a ticket from its account, and empties the ticket.
func (a *Accounts) refundTicket(t *Ticket) {
	own := a.accountOf(t.namespace)
	growth, churn := own.subtract(t.growth, t.churn)
	a.sum.subtract(growth, churn)
	own.extra = max(0, own.extra-t.extra)
	*t = Ticket{}
}

// subtract subtracts bytes of admitted writes and of churn, as far as the account has them, and returns how many it
// has subtracted.
func (a *account) subtract(growth, churn int64) (takenGrowth, takenChurn int64) {
	for _, part := range []*int64{&a.fresh, &a.counting, &a.late} {
		n := min(*part, growth-takenGrowth)
		*part -= n
		takenGrowth += n
	}
	for i := range a.churn {
		n := min(a.churn[i], churn-takenChurn)
		a.churn[i] -= n
		takenChurn += n
	}
	return takenGrowth, takenChurn
}

// answer is a response that records its status code.
type answer struct {
	http.ResponseWriter

	code int
}

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(code int) {
	a.code = code
	a.ResponseWriter.WriteHeader(code)
}

// Unwrap lets package responsewriter find the interfaces of the response.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
